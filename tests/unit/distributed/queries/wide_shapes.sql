WITH q AS (SELECT id, low, small, dec FROM {s}{w}) SELECT count() AS c, sum(small) FROM q WHERE id IN (SELECT id FROM q WHERE small > 1)
WITH q AS (SELECT id, low, small, dec FROM {s}{w}), r AS (SELECT low, max(id) AS m FROM q GROUP BY low) SELECT q.id, r.m FROM q JOIN r ON q.low = r.low ORDER BY ALL
WITH q AS (SELECT low, count() AS n, sum(small) AS s FROM {s}{w} GROUP BY low) SELECT * FROM q WHERE n > (SELECT avg(n) FROM q) ORDER BY ALL
WITH q AS (SELECT low, count() AS n, sum(small) AS s FROM {s}{w} GROUP BY low) SELECT a.low, b.n FROM q AS a LEFT JOIN q AS b ON a.low = b.low ORDER BY ALL
WITH (SELECT max(small) FROM wide) AS top SELECT id, v, small = top AS t FROM wide{w} ORDER BY ALL LIMIT 9
WITH 3 AS n SELECT low, countIf(small > n) AS c FROM {s}{w} GROUP BY low ORDER BY low
WITH wide AS (SELECT 1 AS id) SELECT * FROM wide UNION ALL SELECT count() FROM one.wide ORDER BY ALL
WITH x AS (SELECT id FROM people) SELECT count() FROM wide WHERE id IN x
WITH x AS (SELECT id FROM people) SELECT count() FROM wide WHERE id NOT IN (SELECT * FROM x) AND small > 1
WITH id % 4 AS m SELECT m, count() AS c, max(id) FROM {s}{w} GROUP BY m ORDER BY m
WITH RECURSIVE r AS (SELECT id, 0 AS depth FROM wide WHERE id = 1 UNION ALL SELECT w.id, r.depth + 1 FROM r JOIN wide AS w ON w.id = r.id * 2 WHERE r.depth < {few}) SELECT * FROM r ORDER BY ALL
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT n, count() AS c FROM r JOIN wide ON wide.small = r.n{w:wide.} GROUP BY n ORDER BY n
SELECT id, v, (SELECT count() FROM people WHERE people.id = wide.id) AS c FROM wide{w:wide.} ORDER BY ALL
SELECT id, v FROM wide WHERE EXISTS (SELECT 1 FROM people WHERE people.id = wide.id AND people.age > {i}) ORDER BY ALL
SELECT id, v FROM wide AS o WHERE NOT EXISTS (SELECT * FROM wide AS i WHERE i.id = o.id + 3 AND i.small > 1) ORDER BY ALL
SELECT low, small FROM wide AS o WHERE small >= (SELECT max(small) FROM wide AS i WHERE i.low = o.low) ORDER BY ALL
SELECT p.id, (SELECT max(small) FROM wide AS w WHERE w.id = p.id) AS m FROM people AS p ORDER BY ALL
SELECT low, count() AS c, sum(dec) FROM (SELECT id, low, small, lown, dec FROM {s}{w}) AS s WHERE small > 1 GROUP BY low ORDER BY low
SELECT low, max(d), sum(n) FROM (SELECT low, small, sum(dec) AS d, count() AS n FROM {s}{w} GROUP BY low, small) GROUP BY low WITH TOTALS ORDER BY low
SELECT * FROM (SELECT * FROM (SELECT id, low, small, lown, dec FROM {s}{w} ORDER BY dec, id, v LIMIT 12)) ORDER BY ALL
SELECT sumMerge(s), uniqExactMerge(u) FROM (SELECT low, sumState(small) AS s, uniqExactState(id) AS u FROM wide{w} GROUP BY low)
SELECT count() FROM (SELECT 1 FROM {s}{w} LIMIT 1000)
SELECT a.low, a.c, b.c FROM (SELECT low, count() AS c FROM wide{w} GROUP BY low) AS a FULL JOIN (SELECT low, count() AS c FROM wide{w} GROUP BY low) AS b ON a.low = b.low ORDER BY ALL
SELECT (SELECT count() FROM wide{w}) AS x, (SELECT max(age) FROM people) AS y
SELECT low, small FROM (SELECT id, low, small, lown, dec FROM {s}{w}) LIMIT 0
SELECT low, arraySort(groupArray((id, small))) AS g FROM (SELECT id, low, small, lown, dec FROM {s}{w}) GROUP BY low ORDER BY low
SELECT * FROM (SELECT low, small, row_number() OVER (PARTITION BY low ORDER BY small, id, v) AS r FROM wide{w}) WHERE r <= 2 ORDER BY ALL
SELECT * REPLACE (small + 1 AS small) FROM {s}{w} ORDER BY id, v LIMIT 4
SELECT COLUMNS('^(id|v|low|maybe)$') APPLY toString FROM {s}{w} ORDER BY ALL LIMIT 9
SELECT wide.* FROM wide{w} ORDER BY id, v LIMIT 5
SELECT count(*), count(COLUMNS('^lown$')) FROM {s}{w}
FROM {s} SELECT low, count() AS c{w} GROUP BY low ORDER BY low
SELECT w.* EXCEPT (js), p.* FROM wide AS w JOIN people AS p ON w.id = p.id{w:w.} ORDER BY w.id, w.v LIMIT 6
SELECT max(COLUMNS('^(id|small|dec)$')) FROM {s}{w}
SELECT untuple(tup), id, v FROM {s}{w} ORDER BY id, v LIMIT 6
SELECT * FROM (SELECT id AS a, low AS b FROM wide{w}) ORDER BY ALL LIMIT 3
SELECT tup.*, id, v FROM {s}{w} ORDER BY id, v LIMIT 6
SELECT small AS s, count() AS c FROM {s}{w} GROUP BY s ORDER BY s WITH FILL FROM 0 TO 12
SELECT day, sum(small) AS c FROM {s}{w} GROUP BY day ORDER BY day WITH FILL STEP 1 INTERPOLATE (c AS c + 1)
SELECT id AS n FROM wide WHERE id < 9 AND v = 0 ORDER BY n WITH FILL STEP 1 LIMIT 6
SELECT low AS small, count() AS c FROM {s}{w} GROUP BY low ORDER BY ALL
SELECT count() AS id, max(id) FROM wide WHERE small > 2
SELECT if(small > 2, low, toString(id % 2)) AS low, count() AS c FROM wide GROUP BY low ORDER BY low SETTINGS prefer_column_name_to_alias = 1
SELECT low, small, count() FROM {s}{w} GROUP BY 1, 2 ORDER BY 1, 2 DESC LIMIT 4
SELECT -sum(small) AS `q.r`, `q.r` + 1 FROM {s}{w}
SELECT low, count() AS c FROM wide{w} GROUP BY low ORDER BY c DESC, low LIMIT 2 SETTINGS extremes = 1
SELECT transform(small, [1, 2], ['one', 'two'], 'more') AS t, any(t) AS u, count() FROM {s}{w} GROUP BY t ORDER BY t
SELECT sum(small) FILTER (WHERE id > 50) AS f, count() FROM {s}{w}
SELECT toTypeName(sum(small)), toTypeName(any(lown)), toTypeName(max(dec)) FROM {s}
SELECT js.a AS a, js.b AS b, js FROM {s}{w} ORDER BY id, v LIMIT 4
SELECT (low, small) AS k, count() FROM {s}{w} GROUP BY k ORDER BY k
SELECT map(low, small) AS k, count() FROM {s}{w} GROUP BY k ORDER BY toString(k)
SELECT arr AS k, count() AS c FROM {s}{w} GROUP BY k HAVING has(k, 1) ORDER BY ALL
SELECT 1 FROM {s}{w} HAVING count() > 5
SELECT 'x' AS k, count() FROM {s}{w} GROUP BY k
SELECT count() FROM {s}{w} GROUP BY 1 + 1
SELECT low FROM {s}{w} GROUP BY low, small ORDER BY low, small
SELECT small + 1 AS s1, s1 * 2 AS s2, sum(s2) AS t FROM {s}{w} GROUP BY small ORDER BY small
SELECT low, count() FROM wide{w} GROUP BY low ORDER BY max(id) DESC, low
SELECT count() > 5 AND max(small) > 1 AS ok FROM {s}{w}
SELECT x.1, x.2 FROM (SELECT (low, max(id)) AS x FROM wide{w} GROUP BY low) ORDER BY ALL
SELECT quantilesExact(0.5, 0.9)(small)[1] AS q, low FROM wide{w} GROUP BY low ORDER BY low
SELECT any(low), any(small) FROM wide WHERE id = 44 AND v = 0
SELECT low, sum(small) AS s, s / sum(s) OVER () AS part FROM wide{w} GROUP BY low ORDER BY low
SELECT id, v, x FROM {s} {array_join}{w} ORDER BY ALL
SELECT x, count() AS c, sum(small) AS t FROM {s} {array_join}{w} GROUP BY x ORDER BY ALL
SELECT x, uniqExact(low) AS u FROM {s} {array_join}{w} GROUP BY x WITH TOTALS ORDER BY ALL LIMIT 5
SELECT id, v, arrayJoin(arr) AS y FROM {s}{w} ORDER BY ALL LIMIT 20
SELECT arrayJoin([1, 2]) AS y, count() AS c FROM {s}{w} GROUP BY y ORDER BY ALL
SELECT max(x) AS q, count() FROM {s} {array_join}{w}
SELECT DISTINCT ON (low) low FROM {s}{w} ORDER BY low
SELECT DISTINCT ON (low, small) low, small FROM {s}{w} ORDER BY low, small LIMIT 5
SELECT low, sum(count()) OVER (ORDER BY low) AS r, count() AS c FROM {s}{w} GROUP BY low ORDER BY ALL
SELECT low, count() FROM {s}{w} GROUP BY low WITH TOTALS HAVING count() > 70 ORDER BY low
SELECT id, v FROM (SELECT * FROM {s}{w} ORDER BY dec DESC, v LIMIT 20) ORDER BY ALL LIMIT 3 WITH TIES
SELECT countIf(id IN (SELECT id FROM people)) AS c, max(small) FROM {s}{w}
SELECT id IN (SELECT id FROM people WHERE age > {i}) AS k, count() FROM {s}{w} GROUP BY k ORDER BY k
SELECT low, max(small) > (SELECT avg(small) FROM wide) AS k FROM {s}{w} GROUP BY low ORDER BY low
SELECT x, count() FROM (SELECT arrayJoin(names) AS x, id FROM {s}{w}) WHERE id IN (SELECT id FROM wide{w}) GROUP BY x ORDER BY ALL
SELECT arraySort(groupArray(low)) FROM (SELECT low FROM {s}{w} GROUP BY low)
SELECT groupArray(id) FROM (SELECT id FROM {s}{w} ORDER BY id, v)
SELECT e.id, e.v, x FROM wide AS e ARRAY JOIN arr AS x JOIN people AS p ON p.id = e.id{w:e.} ORDER BY ALL
SELECT w.id, p.id FROM wide AS w ASOF JOIN people AS p ON w.small % 2 = p.id % 2 AND w.id >= p.id{w:w.} ORDER BY ALL LIMIT 9
SELECT * FROM (SELECT dec, count() FROM {s}{w} GROUP BY dec ORDER BY dec LIMIT 3 UNION ALL SELECT id, 1 FROM people WHERE id < 9) ORDER BY ALL
SELECT * FROM (SELECT id, v, low FROM wide{w}) AS a LEFT JOIN (SELECT id, count() AS n FROM wide{w} GROUP BY id) AS b USING (id) ORDER BY ALL LIMIT 7
SELECT low, count() AS c FROM view(SELECT id, low, small FROM {s}{w}) WHERE small > 1 GROUP BY low ORDER BY low
SELECT x.id, p.name FROM view(SELECT id, v FROM wide{w}) AS x JOIN people AS p ON x.id = p.id ORDER BY ALL LIMIT 9
SELECT * FROM (SELECT id, v, _partition_id FROM {s}{w}) ORDER BY ALL LIMIT 4
SELECT * FROM (SELECT *, _sample_factor FROM {s}{w}) ORDER BY v * 1000 + id LIMIT 4
SELECT _sample_factor AS f, count() AS c, max(_row_exists) FROM {s}{w} GROUP BY f ORDER BY f
SELECT _table AS t, _partition_id AS p, low, count() AS c FROM {s}{w} GROUP BY t, p, low ORDER BY ALL
SELECT count() FROM {s} WHERE _table = 'wide' AND _part != '' AND small > {few}
SELECT arrayMap(x -> (x, small), arr) AS z, count() AS c FROM {s}{w} GROUP BY z ORDER BY toString(z)
SELECT id, v FROM {s}{w} ORDER BY id, v LIMIT -4
SELECT id, v FROM {s}{w} ORDER BY id, v LIMIT 0.1
SELECT id, v FROM {s}{w} ORDER BY id, v LIMIT {few} OFFSET 0.5
SELECT id, v, low FROM {s}{w} ORDER BY id, v LIMIT -1 BY low
SELECT a.id, b.id FROM (SELECT id FROM {s}{w} ORDER BY id, v LIMIT 5) AS a PASTE JOIN (SELECT id FROM people ORDER BY id LIMIT 5) AS b
SELECT w.id, w.v, p.name FROM wide AS w LEFT JOIN people AS p ON w.id = p.id AND w.low = 'x1' OR w.small = p.id{w:w.} ORDER BY ALL LIMIT 9
