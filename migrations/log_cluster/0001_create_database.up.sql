-- What the platform writes about itself, on three shards of the same nodes.
CREATE DATABASE IF NOT EXISTS logs;
