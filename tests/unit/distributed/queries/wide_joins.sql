SELECT {left}, {right} FROM {tables}{w:e.} ORDER BY ALL
SELECT e.low AS k, count() AS c, sum(p.age) AS s, max(e.dec) FROM {tables}{w:e.} GROUP BY k ORDER BY k
SELECT p.name, uniqExact(e.low) AS u, countIf(p.age > 9) FROM {tables}{w:e.} GROUP BY p.name WITH TOTALS ORDER BY ALL
SELECT count() FROM wide AS e {kind} people AS p USING (id){w:e.}
SELECT count(), sum(a.small), max(p.age) FROM wide AS a JOIN wide AS b ON a.id = b.id LEFT JOIN people AS p ON p.id = b.id{w:a.}
SELECT e.id, p.age, count() OVER (PARTITION BY e.low) AS n FROM {tables}{w:e.} ORDER BY ALL LIMIT 8
SELECT e.small, p.age FROM wide AS e, people AS p WHERE e.id = p.id AND e.low = 'x1' AND p.age > {i} ORDER BY ALL
SELECT e.id, e.v, x.s FROM wide AS e JOIN (SELECT low, sum(small) AS s FROM wide{w} GROUP BY low) AS x ON e.low = x.low{w:e.} ORDER BY ALL
SELECT wide.id, people.name FROM wide LEFT JOIN people ON wide.id = people.id{w:wide.} ORDER BY ALL
SELECT DISTINCT e.low, p.age FROM {tables}{w:e.} ORDER BY ALL LIMIT 11
SELECT {left}, {right} FROM {tables} PREWHERE p.age > {i}{w:e.} ORDER BY ALL
SELECT {left}, {right} FROM {tables} PREWHERE age > {i} ORDER BY ALL
SELECT {left}, {right} FROM {tables} PREWHERE e.small > 1 AND e.id IN (SELECT id FROM people PREWHERE age > {i}){w:e.} ORDER BY ALL
SELECT e.low, count() AS c, max(p.age) FROM people AS p {kind} wide AS e FINAL ON e.id = p.id PREWHERE e.v = {few} % 2 GROUP BY e.low ORDER BY ALL
SELECT {left}, {right} FROM {tables} PREWHERE 1 OR NULL{w:e.} ORDER BY ALL
