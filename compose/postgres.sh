#!/usr/bin/env bash
# Starts PostgreSQL; makes its databases first where there are none: `airflow` for Airflow, `oncluster` for the ledger.
#
# The data directory gets its name when it is complete, so that a container that is killed while it makes it simply
# begins again. POSTGRES_PASSWORD is that of both roles, and is read only then.
set -euo pipefail

bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort --version-sort | tail -n 1)
data=/var/lib/oncluster/pgdata
new=$data.new

if [ ! -d "$data" ]; then
  rm -rf "$new"
  "$bin/initdb" --pgdata="$new" --encoding=UTF8 --locale=C.UTF-8 --auth-local=trust --auth-host=scram-sha-256
  echo "host all all all scram-sha-256" >>"$new/pg_hba.conf"
  # Heard by nobody but this script.
  "$bin/pg_ctl" --pgdata="$new" --wait --silent --options="-c listen_addresses='' -k /tmp" start
  for role in airflow oncluster; do
    "$bin/psql" --quiet --host=/tmp --dbname=postgres --set=ON_ERROR_STOP=1 \
      --set=role="$role" --set=password="$POSTGRES_PASSWORD" <<'SQL'
CREATE ROLE :"role" LOGIN PASSWORD :'password';
CREATE DATABASE :"role" OWNER :"role";
SQL
  done
  "$bin/pg_ctl" --pgdata="$new" --wait --silent --mode=fast stop
  mv "$new" "$data"
fi

exec "$bin/postgres" -D "$data" -k /tmp -c listen_addresses='*'
