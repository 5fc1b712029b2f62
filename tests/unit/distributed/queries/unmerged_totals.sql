SELECT city, count() AS c, uniq(name) FROM events GROUP BY city WITH TOTALS
SELECT city, sum(price) AS s, max(id) FROM events WHERE id > 20 GROUP BY city WITH TOTALS HAVING s > 10 ORDER BY s
SELECT city, note AS n, groupUniqArray(3)(id % 2) AS g FROM events GROUP BY city, n WITH TOTALS ORDER BY n, city LIMIT 3
SELECT count() + 1 AS c, city AS k FROM events GROUP BY k WITH TOTALS HAVING count() > 24 SETTINGS totals_mode = 'before_having'
SELECT id % 3 AS k, avg(ratio) FROM events GROUP BY k WITH ROLLUP WITH TOTALS
SELECT id % 3 AS k, city, count() FROM events GROUP BY k, city WITH CUBE WITH TOTALS
SELECT city, count() AS c, dictGet('default.words', 'word', c % 3) AS w FROM events GROUP BY city WITH TOTALS HAVING dictHas('default.words', c % 3) ORDER BY ALL
SELECT city, count() AS c FROM events GROUP BY city WITH TOTALS HAVING c % 4 IN (SELECT number FROM numbers(3)) ORDER BY ALL
