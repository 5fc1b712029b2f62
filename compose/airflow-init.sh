#!/usr/bin/env bash
# Prepares what Airflow's services share, once before they start, and again harmlessly:
# airflow.cfg with secrets that are made up here (they are in no file of the project), the administrator's password, the
# tables of the database.
set -euo pipefail

umask 077
mkdir -p "$AIRFLOW_HOME"
python - <<'PYTHON'
import json, os, pathlib
file = pathlib.Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
file.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))
PYTHON
airflow db migrate
