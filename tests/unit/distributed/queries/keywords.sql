SELECT `limit`, count() FROM k WHERE `limit` > 1 AND `order` < 50 GROUP BY `limit` ORDER BY `limit` LIMIT 2
SELECT `order`, `from`, `where` FROM k WHERE `where` = 'w1' AND `from` != '2' ORDER BY `order` LIMIT 4
SELECT k.order, k.limit, k.from FROM k WHERE k.where = 'w1' AND k.limit > 2 ORDER BY k.order LIMIT 4
SELECT k.limit, sum(k.order) FROM k GROUP BY k.limit HAVING sum(k.with) > 2 ORDER BY k.limit
SELECT `with`, count() FROM k WHERE `with` = 1 GROUP BY `with` WITH TOTALS
SELECT `union`, max(`order`) AS `order` FROM k GROUP BY `union` ORDER BY `union`
SELECT `limit` % 2 AS `group`, count() AS `from` FROM k GROUP BY `group` ORDER BY `group`
SELECT count() FROM k WHERE `and` AND NOT `limit` AND `and` > 0
SELECT max(`and`) AND min(`order`) = 0 AS `and` FROM k
SELECT final, date FROM k WHERE date = '2024-01-03' ORDER BY k.order DESC LIMIT 2
SELECT s.`final` FROM k AS s ORDER BY s.`order` LIMIT 2
SELECT DISTINCT `limit` AS `from`, `with` AS `limit` FROM k ORDER BY ALL LIMIT 4
SELECT `limit` FROM k ORDER BY `order` LIMIT 2 BY `limit`
SELECT `order` FROM k ORDER BY `limit` DESC, `order` LIMIT 2, 3
SELECT `select`.`order` FROM k AS `select` ORDER BY 1 LIMIT 1
SELECT a.order, b.limit FROM k AS a JOIN k AS b ON a.order = b.order + 1 WHERE a.limit = 1 AND b.from = '0' ORDER BY 1
SELECT `dot.ted`, `q``t`, `a b` FROM k WHERE `dot.ted` > 1 AND `q``t` < 4 ORDER BY `order` LIMIT 3
SELECT `dot.ted` AS `x.y`, count() AS `a ``b` FROM k GROUP BY `x.y` ORDER BY `x.y`
SELECT `__g0`, count(), sum(`__a0`) FROM k GROUP BY `__g0` ORDER BY ALL
SELECT 1 AS `__a0`, count() AS `__g0` FROM k
SELECT `__table1`, max(`order`) AS `__table2` FROM k GROUP BY `__table1` ORDER BY ALL
SELECT k.limit, k.with FROM k PREWHERE k.limit = 1 AND k.where != 'w0' WHERE k.with = 2 ORDER BY k.order LIMIT 3
SELECT k.final FROM k FINAL WHERE k.final > 1 ORDER BY k.order LIMIT 3
SELECT 1 AS from, max(`order`) AS join FROM one.k
SELECT `order` AS in FROM one.k ORDER BY 1 LIMIT 2
SELECT `order` AS as FROM one.k ORDER BY 1 LIMIT 1
WITH 1 AS from SELECT from, count() FROM one.k GROUP BY from
SELECT max(where) FROM (SELECT `order` AS where, 1 AS from, 2 AS union FROM one.k)
SELECT prewhere.limit, count() FROM one.k AS prewhere WHERE prewhere.with = 1 GROUP BY prewhere.limit ORDER BY 1
SELECT count() AS from FROM one.k AS p JOIN one.k AS join ON p.order = join.order WHERE join.limit = 1
WITH 5 AS k SELECT count(), k FROM one.k
WITH 5 AS k, (SELECT 1) AS one SELECT max(`order`), one FROM k WHERE `limit` IN (SELECT `limit` FROM k WHERE `with` = 1)
SELECT `order` AS prewhere FROM one.k PREWHERE `order` < 9 ORDER BY prewhere
SELECT `order` AS prewhere, count() FROM one.k PREWHERE prewhere < 9 AND NOT prewhere = 3 WHERE prewhere > 1 GROUP BY prewhere ORDER BY prewhere
SELECT prewhere.order FROM one.k AS prewhere PREWHERE prewhere.limit = 1 ORDER BY prewhere.order LIMIT 3
SELECT `limit` AS where, `order` AS limit FROM one.k PREWHERE where = 1 AND 7 > limit ORDER BY where, limit
SELECT count(), max(a.id) FROM one.events AS a SAMPLE 1 / 2 OFFSET 1 / 4 PREWHERE a.id > 9 WHERE a.city != 'Rome' ORDER BY 1
SELECT `order` FROM group PREWHERE limit = 1 WHERE `with` > 0 ORDER BY `order` LIMIT 3
SELECT count() FROM group AS x JOIN group AS y ON x.order = y.order WHERE x.order IN (SELECT `order` FROM group PREWHERE limit = 1)
SELECT x.order, y.limit FROM group AS x JOIN prewhere AS y ON x.order = y.order PREWHERE y.limit = 1 ORDER BY x.order LIMIT 3
SELECT `order` FROM prewhere WHERE limit = 2 ORDER BY `order` LIMIT 2
SELECT `order` FROM prewhere PREWHERE limit = 2 ORDER BY `order` LIMIT 2
SELECT group.order FROM prewhere, group PREWHERE group.limit = 2 ORDER BY group.order LIMIT 2
SELECT count() FROM from WHERE `limit` > 1
SELECT `order` FROM from ORDER BY `limit`, `order` LIMIT 2 BY `limit`
SELECT from.from, count() FROM from GROUP BY from.from ORDER BY ALL
SELECT x.order FROM from AS x JOIN from AS y ON x.order = y.order + 90 ORDER BY ALL
SELECT count() FROM from FINAL
SELECT `order`, from FROM from WHERE `order` < 3 ORDER BY ALL
SELECT (SELECT max(from) FROM `from`) AS m, if(from > '1', from, m) AS r FROM from ORDER BY ALL LIMIT 40
SELECT join.order FROM join WHERE join.limit > 3 AND join.from = '1' ORDER BY join.order
SELECT `order` FROM join JOIN from USING `order` WHERE `order` IN (SELECT `limit` FROM join) ORDER BY ALL
SELECT `order`, join FROM join ARRAY JOIN [1, 2] AS join WHERE `order` < 3 ORDER BY ALL
SELECT `order`, k FROM k ARRAY JOIN [1, 2] AS x, [3, 4] AS k WHERE `order` < 3 ORDER BY ALL
