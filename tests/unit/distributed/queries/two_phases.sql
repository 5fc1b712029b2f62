SELECT count() FROM events
SELECT count(*), sum(price), round(avg(ratio), 6), min(at), max(day) FROM events
SELECT city, count() AS c FROM events GROUP BY city ORDER BY c DESC, city
SELECT city, name, sum(id) FROM events WHERE id > 10 AND name != 'n3' GROUP BY city, name ORDER BY ALL
SELECT city, sum(price) AS s FROM events GROUP BY city HAVING s > 100 ORDER BY s LIMIT 2
SELECT city, count() FROM events GROUP BY city WITH TOTALS ORDER BY city
SELECT city, note, count() FROM events GROUP BY ROLLUP(city, note) ORDER BY ALL
SELECT city, note, count(), grouping(city) FROM events GROUP BY CUBE(city, note) ORDER BY ALL
SELECT uniqExact(name), uniq(city), count(DISTINCT note) FROM events
SELECT quantileExact(0.5)(id), quantilesExact(0.1, 0.9)(id) FROM events
SELECT arraySort(groupArray(id)) FROM events WHERE id < 20
SELECT city, any(city), anyLast(city) FROM events GROUP BY city ORDER BY city
SELECT argMin(name, id), argMax(name, id), sumIf(id, city = 'Rome'), countIf(note IS NULL) FROM events
SELECT note, count(), min(note) FROM events GROUP BY note ORDER BY note NULLS FIRST
SELECT toStartOfDay(at) AS d, avg(price) FROM events GROUP BY d ORDER BY d
SELECT props['b'] AS b, sum(props['a']) FROM events GROUP BY b ORDER BY b
SELECT pair.b, sum(pair.a), count() FROM events GROUP BY pair.b ORDER BY 1
SELECT count() FROM events WHERE id = 1000000
SELECT sum(id) FROM events WHERE id > 1000000
SELECT city FROM events GROUP BY city ORDER BY city
SELECT city, count() + 1 AS c, sum(id) / count() FROM events PREWHERE id > 3 WHERE price > 5 GROUP BY 1 ORDER BY 1
SELECT city, count() c FROM one.events AS e WHERE e.id IN (1, 2, 3, 50) GROUP BY e.city ORDER BY e.city
SELECT _shard_num > 0 AS s, count() FROM events GROUP BY 1
SELECT twice % 3 AS m, count(), max(label) FROM events GROUP BY m ORDER BY m
SELECT city, topK(1)(city), groupUniqArray(city) FROM events GROUP BY city ORDER BY city LIMIT 1 BY city LIMIT 3 SETTINGS max_threads = 2
SELECT max(id) FROM events
SELECT count() >= 0 FROM events SAMPLE 1/2
SELECT count() FROM people FINAL
SELECT length(tags) l, sum(length(tags)) FROM events GROUP BY l ORDER BY l
SELECT if(city = 'Rome', 'r', 'o') AS k, k || 'x', count() FROM events GROUP BY k ORDER BY k
SELECT arraySum(x -> x * 2, groupArray(id)) FROM events
SELECT sum(price) AS `a b`, `a b` * 2 FROM events FORMAT TSVWithNamesAndTypes
SELECT events.city, count() FROM events e GROUP BY events.city ORDER BY events.city
SELECT max(events.id), min(e.id) FROM events AS e WHERE events.city = 'Rome'
SELECT _partition_id, count(), uniqExact(_part) > 0, min(_part_offset), max(_row_exists) FROM events GROUP BY _partition_id
SELECT round(sum(_sample_factor) / count()) FROM events SAMPLE 1/2
SELECT _table, count() FROM events WHERE _table = 'events' GROUP BY _table
SELECT count() FROM events WHERE _table != 'events'
SELECT max(_database), any(_table), count() FROM people WHERE id > 3
SELECT city AS a, (name, city) AS b, count() AS c FROM events GROUP BY city, b WITH ROLLUP ORDER BY ALL
SELECT city, note, sum(id) AS s FROM events GROUP BY city, note, city WITH CUBE ORDER BY ALL
SELECT city, count() AS c FROM events GROUP BY city, city WITH ROLLUP WITH TOTALS ORDER BY ALL
SELECT count(), max(price) FROM events WITH TOTALS
SELECT count(), max(id) FROM events WHERE id > 1000 WITH TOTALS
SELECT uniq(city) AS u FROM events WHERE id > 10 AND city != 'Rome' WITH TOTALS HAVING u > 1000
SELECT sum(id) FROM events WHERE city = 'Rome' WITH ROLLUP
SELECT count() FROM events WHERE id > 1000 WITH CUBE HAVING count() = 0
SELECT COLUMNS('^(tw|la)') APPLY max, any(_table) FROM events
SELECT city, 7 AS k, count() AS c FROM events GROUP BY city ORDER BY k, city LIMIT 3
SELECT city, 2 AS k, max(id) AS m, -3 AS z FROM events GROUP BY city ORDER BY z, m, k LIMIT 3
