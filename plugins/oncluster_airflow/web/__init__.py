"""The cluster page in Airflow: shards and replicas, the queue host by host, what is stuck and why.

    app        the routes, as a FastAPI application that Airflow mounts
    access     who may see it: Airflow's login, and permission to read the cluster's runs
    reader     looks at clusters in a thread of its own; `watch` is one of them, and what was seen of it
    render     what was seen, as HTML; `lag_chart` draws

It shows, and starts DAGs through Airflow's own API with the user's own login. It has no other way to act.
"""
