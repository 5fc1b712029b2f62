{t}id > {i}
{t}id % 3 = 1
{t}small IN (1, 2, 5)
{t}low = 'x1'
{t}lown IS NULL
{t}lown != 'y2'
{t}maybe < 7
NOT ({t}maybe = 3)
{t}kind = 'a'
{t}kind IN ('a', 'c')
{t}day >= '2024-01-09'
{t}day BETWEEN '2024-01-03' AND '2024-02-11'
{t}tup.a > 3
{t}tup = (3, 'b1')
has({t}arr, 2)
{t}m['a'] > {i}
mapContains({t}m, 'b')
{t}js.a = 4
{t}ip > '10.0.0.9'
{t}fix = 'f1'
{t}yes
NOT {t}yes
{t}dec > 12.5
{t}dec = 2.5
{t}at > '2024-01-05 00:00:00'
empty({t}arr)
{t}low LIKE 'x%'
({t}id, {t}small) IN ((1, 1), (8, 1), (9, 2))
{t}id IN (SELECT id FROM people WHERE age > 40)
{t}id NOT IN (SELECT id FROM wide WHERE small = 2)
{t}id GLOBAL IN (SELECT id * 2 FROM wide WHERE low = 'x0')
{t}maybe IN (SELECT maybe FROM wide WHERE id < 60)
{t}maybe NOT IN (SELECT maybe FROM wide WHERE maybe > 4)
({t}id, {t}low) IN (SELECT id, low FROM wide WHERE small > 2)
{t}low IN (SELECT n FROM extra_names)
{t}id IN extra_ids
{t}dec > (SELECT avg(dec) FROM wide)
{t}id = (SELECT max(id) FROM people)
{t}small < (SELECT max(small) FROM wide WHERE low = 'x1')
EXISTS (SELECT 1 FROM people WHERE people.id = {t}id)
EXISTS (SELECT 1 FROM wide WHERE id = {i})
{t}id IN (SELECT id FROM people WHERE id IN (SELECT id FROM wide WHERE small IN (SELECT small FROM wide WHERE id < 4)))
{t}lown IN (SELECT lown FROM wide)
{t}tup IN (SELECT tup FROM wide WHERE id < 50)
{t}uid IN (SELECT uid FROM wide WHERE small = 1)
{t}id < (SELECT count() FROM (SELECT DISTINCT low, small FROM wide)) * 10
arrayExists(x -> x > 3, {t}arr)
CASE WHEN {t}small > 3 THEN {t}low = 'x1' ELSE {t}id > {i} END
{t}maybe IS NOT DISTINCT FROM NULL
toString({t}id) ILIKE '%1%'
