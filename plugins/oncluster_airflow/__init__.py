"""What Airflow needs of oncluster. Thin: whatever is done here, the command line does with the same engine.

    migration_dag    one DAG per folder of migrations; `dags/migrate.py` calls it
    etl_dag          the DAG that loads data with Spark; `dags/etl_flights.py` calls it
    operation_dags   health, cleanup, drift, Keeper backups; `dags/operations.py` calls it
    operators        SubmitStatementOperator, and the tasks of a migration DAG
    sensors          DDLFinishedSensor, MigrationStatementSensor: first on the worker, then in the triggerer
    triggers         what waits there, on Keeper watches
    hooks            KeeperHook (connection type zookeeper), ClickHouseNodesHook (type clickhouse)
    notifier         OnclusterNotifier: log, e-mail, webhook, chat (`channels`)
    deadlines        people are told of runs, `late_wait`: of waits, that are not over
    errors           DDLFailed, DDLTimeout, DDLAbandoned, DDLGone, and what is retried
    settings         the environment

Nothing is imported here, so that a DAG file pays only for what it uses.
"""
