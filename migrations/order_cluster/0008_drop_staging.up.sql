-- Files are read with a table function now; nothing is staged any more. This asks for approval.
-- oncluster-next: allow=destructive reason="the table holds copies of files that are kept"
DROP TABLE IF EXISTS flights.flights_staging;
