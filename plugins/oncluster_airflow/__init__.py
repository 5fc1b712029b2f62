"""What Airflow needs of oncluster: hooks, operators, sensors, triggers, notifiers."""
