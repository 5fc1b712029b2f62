SELECT * FROM events ORDER BY id
SELECT *, twice, label FROM events ORDER BY id LIMIT 5
SELECT e.*, label FROM events AS e WHERE label = 'n3!' ORDER BY id
SELECT * EXCEPT (tags, props) FROM events ORDER BY id DESC LIMIT 7 OFFSET 3
SELECT COLUMNS('^(id|name)$') FROM events ORDER BY id LIMIT 3
SELECT id, name FROM events WHERE city = 'Rome' AND id BETWEEN 10 AND 200 ORDER BY price DESC, id LIMIT 10
SELECT DISTINCT city FROM events ORDER BY city
SELECT DISTINCT city, note FROM events WHERE id > 100 ORDER BY ALL
SELECT name, id FROM events ORDER BY name, id LIMIT 2 BY name
SELECT name, id FROM events ORDER BY name DESC, id LIMIT 3 BY name LIMIT 5
SELECT id, t FROM events ARRAY JOIN tags AS t ORDER BY id, t LIMIT 50
SELECT id, arrayJoin(tags) AS t FROM events ORDER BY id, t LIMIT 50
SELECT arrayJoin(tags) AS t, count() FROM events GROUP BY t ORDER BY t
SELECT id, row_number() OVER (PARTITION BY city ORDER BY id) AS r FROM events ORDER BY id
SELECT city, sum(count()) OVER () AS total, count() FROM events GROUP BY city ORDER BY city
SELECT e.id, p.name, p.age FROM events AS e JOIN people AS p ON e.id = p.id ORDER BY e.id
SELECT events.id, people.name FROM events LEFT JOIN people ON events.id = people.id WHERE events.id < 50 ORDER BY events.id
SELECT * FROM people LEFT JOIN events USING (id) ORDER BY id
SELECT p.name, count() FROM events e, people p WHERE e.id = p.id AND e.city = 'Oslo' AND p.age > 5 GROUP BY p.name ORDER BY 1
SELECT count() FROM events WHERE id IN (SELECT id FROM people WHERE age > 20)
SELECT count() FROM events WHERE id GLOBAL IN (SELECT id FROM people)
SELECT count() FROM events WHERE id NOT IN (SELECT id FROM events WHERE city = 'Rome')
SELECT count() FROM events WHERE id GLOBAL NOT IN (SELECT id * 2 FROM people)
SELECT e.id FROM events e GLOBAL ANY LEFT JOIN people p ON e.id = p.id ORDER BY e.id
SELECT id FROM events WHERE price > (SELECT avg(price) FROM events) ORDER BY id
SELECT (SELECT max(id) FROM people) AS m, count() FROM events
SELECT id FROM events WHERE ratio > (SELECT avg(ratio) FROM events WHERE city = 'Bonn') AND id < 290 ORDER BY id LIMIT 4
WITH c AS (SELECT city, count() AS n FROM events GROUP BY city) SELECT * FROM c ORDER BY city
WITH c AS (SELECT id FROM people) SELECT a.id FROM c AS a JOIN c AS b ON a.id = b.id ORDER BY a.id
WITH (SELECT sum(id) FROM events) AS total SELECT city, sum(id) / total FROM events GROUP BY city ORDER BY city
SELECT * FROM (SELECT id FROM events WHERE id < 3 UNION ALL SELECT id FROM people WHERE id < 9) ORDER BY id
SELECT * FROM (SELECT id FROM events UNION DISTINCT SELECT id FROM people) ORDER BY id
SELECT count() FROM (SELECT id FROM events INTERSECT SELECT id FROM people)
SELECT x.c, count() FROM (SELECT city AS c, id FROM events WHERE id > 7) AS x GROUP BY x.c ORDER BY 1
SELECT id, name FROM people FINAL ORDER BY id
SELECT city, groupArray(name) FROM (SELECT city, name, id FROM events ORDER BY id) GROUP BY city ORDER BY city
SELECT one.events.id, one.events.city FROM one.events WHERE one.events.id < 4 ORDER BY one.events.id
SELECT id, pair.a, props['a'], tags[1], note.null FROM events ORDER BY id LIMIT 30
SELECT id, toTypeName(price), at, day FROM events ORDER BY at LIMIT 3
SELECT day, count() AS c FROM events GROUP BY day ORDER BY day WITH FILL STEP 1
SELECT city, count() FROM events GROUP BY GROUPING SETS ((city), ()) ORDER BY ALL
SELECT 1 FROM events LIMIT 3
SELECT name FROM events ORDER BY id LIMIT 1 WITH TIES
SELECT count() FROM events AS a JOIN events AS b ON a.id = b.id WHERE a.city = 'Rome' AND b.name = 'n5'
SELECT id, sum(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM events WHERE city = 'Kyiv' ORDER BY id
SELECT sumMerge(s) FROM (SELECT city, sumState(id) AS s FROM events GROUP BY city)
SELECT count() FROM events WHERE (id, name) IN (SELECT id, name FROM events WHERE id < 30)
SELECT a.id FROM events a ANY INNER JOIN people b ON a.id = b.id WHERE b.age IS NOT NULL ORDER BY a.id
SELECT a.id, b.age FROM events a ASOF JOIN people b ON a.city != '' AND a.id = b.id AND a.ratio >= b.age ORDER BY a.id
SELECT exists(SELECT 1 FROM people WHERE id = 3), count() FROM events
SELECT city, lagInFrame(city) OVER w FROM events WINDOW w AS (ORDER BY id) ORDER BY id LIMIT 4
SELECT _shard_num IN (1, 2, 3) AS ok, id FROM events ORDER BY id LIMIT 4
SELECT id FROM events WHERE NOT (note = 'x1') OR note IS NULL ORDER BY id
SELECT sum(DISTINCT id % 7) FROM events
SELECT count() FROM events WHERE id IN extra
SELECT e.id FROM events AS e JOIN extra AS x USING (id) WHERE e.city = 'Rome' ORDER BY e.id
SELECT id, age FROM people FINAL PREWHERE age > 20 WHERE id > 30 ORDER BY id LIMIT 4
SELECT p.id FROM people AS p FINAL JOIN events AS e ON e.id = p.id PREWHERE p.age > 20 AND p.name != 'p1' ORDER BY p.id
SELECT city, name, count() FROM events GROUP BY GROUPING SETS ((city), (name), ()) HAVING max(price) > 370 ORDER BY sum(price), city, name
SELECT length(city) AS k, count() FROM events GROUP BY k ORDER BY k
SELECT city = 'Rome' AS k, length(city) % 2 AS m, max(id) FROM events GROUP BY k, m ORDER BY ALL
SELECT events.id, e.name FROM events AS e WHERE events.id < 20 ORDER BY events.id
SELECT events.* FROM events AS e WHERE one.events.id < 5 ORDER BY e.id
SELECT events.id, people.name AS n FROM events AS e JOIN people AS p ON events.id = people.id ORDER BY one.events.id
SELECT e.id, p.name FROM events AS e LEFT JOIN people AS p ON events.id = p.id WHERE people.age > 5 ORDER BY e.id
SELECT id FROM events AS e WHERE events.id IN (SELECT people.id FROM people AS p WHERE people.age > 30) ORDER BY id
SELECT pair.a, e.pair.b, events.pair.a FROM events AS e ORDER BY events.id LIMIT 5
SELECT id FROM events AS `the events` PREWHERE events.id > 250 WHERE `the events`.city = 'Rome' ORDER BY id
SELECT count() FROM view(SELECT * FROM events WHERE id < 10)
SELECT v.id, p.name FROM view(SELECT id FROM events WHERE city = 'Rome') AS v JOIN people AS p ON v.id = p.id ORDER BY v.id
SELECT id, _sample_factor FROM events SAMPLE 1/4 ORDER BY id LIMIT 5
SELECT count() FROM events WHERE _partition_id = 'all' AND _part LIKE 'all%' AND _row_exists AND id IN (SELECT id FROM people)
SELECT *, _sample_factor FROM events ORDER BY id LIMIT 3
SELECT * FROM (SELECT id, _partition_id, twice FROM events) ORDER BY id LIMIT 3
SELECT * FROM (SELECT *, _sample_factor, label FROM events WHERE twice > 8) ORDER BY id LIMIT 3
SELECT x.*, e.*, e.label FROM events AS e JOIN (SELECT id, upper(name) AS label FROM people) AS x ON e.id = x.id ORDER BY e.id LIMIT 3
SELECT * EXCEPT (tags, props) FROM (SELECT *, label FROM events UNION ALL SELECT *, label FROM events) ORDER BY ALL LIMIT 3
SELECT * FROM (SELECT id, label FROM events WHERE id IN (SELECT id FROM people WHERE name != 'p1')) ORDER BY id LIMIT 3
SELECT COLUMNS('a') FROM (SELECT id, label FROM events) ORDER BY 1 LIMIT 3
WITH q AS (SELECT id, twice FROM events) SELECT * FROM q JOIN people USING id ORDER BY id LIMIT 3
SELECT id FROM events ORDER BY id LIMIT 18446744073709551615 OFFSET 290
SELECT id FROM events ORDER BY id LIMIT 3 OFFSET 18446744073709551614
SELECT toJSONString(city) AS k, count() FROM events GROUP BY k ORDER BY k
SELECT countIf(id IN (SELECT id FROM people)) AS n, count() FROM events WHERE city = 'Rome' WITH TOTALS
SELECT COLUMNS('^(id|twice|label)$') FROM events ORDER BY id LIMIT 3
SELECT COLUMNS(label, twice), id FROM events ORDER BY id LIMIT 3
SELECT * LIKE '%l%', * FROM events ORDER BY id LIMIT 3
SELECT e.COLUMNS('^la'), p.* FROM events AS e JOIN people AS p ON e.id = p.id ORDER BY e.id LIMIT 3
SELECT * FROM (SELECT COLUMNS('^(id|_|label)') FROM events WHERE _part != '') ORDER BY id LIMIT 3
SELECT * FROM (SELECT * FROM events) AS x JOIN (SELECT COLUMNS('^(id|tw)') FROM events) AS y USING id ORDER BY id LIMIT 3
SELECT id, 7 AS k FROM events ORDER BY k, id LIMIT 3
SELECT id, 2 AS k, city FROM events ORDER BY k DESC, id LIMIT 5
SELECT e.id, p.age FROM events AS e LEFT JOIN people AS p ON e.id = p.id PREWHERE toUInt8(1) OR NULL ORDER BY ALL
SELECT id, false AS k FROM events ORDER BY k, id DESC LIMIT 3
SELECT -1 AS k, id, city FROM events ORDER BY k, id LIMIT 4
SELECT id, 9 AS k FROM events ORDER BY id LIMIT 1 BY k
SELECT * REPLACE (id + 1 AS ratio) FROM events WHERE ratio > 290 ORDER BY ratio DESC
SELECT * EXCEPT (tags) REPLACE (id + 1 AS ratio) FROM events ORDER BY ratio DESC LIMIT 3
SELECT * REPLACE (id AS ratio), row_number() OVER (ORDER BY ratio DESC) AS n FROM events ORDER BY n LIMIT 3
SELECT * FROM events AS e JOIN (SELECT id * 2 AS twice FROM people) AS p USING (twice) ORDER BY twice LIMIT 3
SELECT *, e.*, COLUMNS('^twi') FROM events AS e JOIN (SELECT name || '!' AS label, id * 2 AS twice FROM people) AS p USING twice, label ORDER BY twice LIMIT 3
SELECT * REPLACE (0 AS ratio) FROM events ORDER BY id LIMIT 3
SELECT id, * APPLY (x -> 1) FROM events ORDER BY id LIMIT 3
SELECT COLUMNS('^n') APPLY x -> id, events.* EXCEPT (tags) APPLY x -> (id, city) FROM events ORDER BY id LIMIT 3
SELECT * FROM people JOIN people USING (id) WHERE id < 30 ORDER BY ALL
SELECT people.name, * FROM people JOIN people ON age = id + 3 OR people.id = 6 ORDER BY ALL LIMIT 9
SELECT count() FROM (SELECT 1 FROM people, one.people, people AS p) AS s, people
SELECT people.id, a.id FROM people AS a, people WHERE a.id = people.id + 3 ORDER BY ALL LIMIT 3
SELECT a.id, people.name AS n FROM people AS a JOIN people ON people.id = a.id WHERE one.people.age > 7 ORDER BY ALL LIMIT 3
SELECT * FROM people AS a JOIN people ON people.id = a.id + 3 JOIN people AS b ON b.id = people.id ORDER BY ALL LIMIT 3
SELECT city, (SELECT groupArray(id) FROM extra) AS ids, count() FROM events GROUP BY city ORDER BY city
WITH (SELECT groupArray(id) FROM extra) AS ids SELECT city, countIf(has(ids, id)) FROM events GROUP BY city ORDER BY city
SELECT sum(price) FROM events WHERE has((SELECT groupArray(id) FROM extra), id)
SELECT (SELECT [3, 1, 2])[1 + id % 3] AS k, count() FROM events GROUP BY k ORDER BY k
SELECT max(id + finalizeAggregation((SELECT sumState(id) FROM extra))) AS m FROM events
WITH recent AS (SELECT * FROM events WHERE id > 9), events AS (SELECT id + 1 AS id FROM recent) SELECT min(id) AS m FROM events
SELECT id FROM events ORDER BY id LIMIT (SELECT count() FROM people WHERE id < 12)
SELECT id FROM events ORDER BY id LIMIT 1 OFFSET (SELECT count() FROM people)
