SELECT city, id % 3 AS k, count() AS c FROM events GROUP BY city, k WITH ROLLUP|ORDER BY ALL
SELECT city, id % 3 AS k, count() AS c, grouping(city) AS g FROM events GROUP BY city, k WITH CUBE HAVING c > 5|ORDER BY ALL
SELECT city AS a, note, uniq(id) AS u FROM events GROUP BY GROUPING SETS ((a, note), (note), ())|ORDER BY ALL LIMIT 9
SELECT city, id % 3 AS k, grouping(city, k) + 1 AS g, max(id) AS m FROM events GROUP BY ROLLUP(city, k) HAVING g > 1|
SELECT id % 2 AS k, sum(price) AS s FROM events GROUP BY k WITH ROLLUP|ORDER BY k NULLS FIRST, s SETTINGS group_by_use_nulls = 1
SELECT city, note FROM events GROUP BY GROUPING SETS (city, note)|ORDER BY ALL
SELECT 2 AS k, city AS k1, count() AS c FROM events GROUP BY GROUPING SETS ((k), (k, k1), (), (k1))|ORDER BY ALL
