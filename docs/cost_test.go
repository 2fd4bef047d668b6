package docs

import (
	"maps"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"taskguard/internal/testing/must"
)

var (
	priced  = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([\d,]+) \| \$([\d.]+) per ([\d,]+) \| \$(\d+\.\d{4}) \|$`)
	summed  = regexp.MustCompile(`(?m)^\| in all, ([^|]+) \| \| \| \$(\d+\.\d{4}) \|$`)
	counted = regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) \| (\d+) \| \d+ \| (\d+) \| (\d+) \|$`)
)

// calls are the billed operations of a row of the table that a test of worker measures.
type calls struct{ reads, writes, tasks, logs float64 }

// The sums of money follow from the prices and from the counts. Only the prices are Google's.
func TestTheSumsOfMoney(t *testing.T) {
	page := read(t, "cost.md")
	number := func(text string) float64 {
		return must.Get(strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64))(t)
	}
	cost := map[string]calls{}
	for _, row := range counted.FindAllStringSubmatch(page, -1) {
		cost[row[1]] = calls{number(row[2]), number(row[3]), number(row[4]), number(row[5])}
	}
	submit, run := cost["submission"], cost["run of less than a heartbeat"]
	beat, recovery := cost["heartbeat, each 100 s of a run"], cost["call of recovery"]

	const documents, seconds, places = 1000, 600, 10
	shared := map[string]float64{
		"Firestore reads":        documents * (submit.reads + run.reads),
		"Firestore writes":       documents * (submit.writes + run.writes + seconds/100*beat.writes),
		"Cloud Tasks operations": documents * (submit.tasks + run.tasks + 1), // and the delivery
		"Cloud Run requests":     documents,
		"bytes of log lines":     documents * run.logs,
	}
	many, single := maps.Clone(shared), maps.Clone(shared)
	many["instance seconds, ten runs at once"] = documents * seconds / places
	single["instance seconds, one run at a time"] = documents * seconds

	const month = 30 * 24 * 60 // calls of recovery
	bills := map[string]map[string]float64{
		"ten runs at once":  many,
		"one run at a time": single,
		"a month without work": {
			"Firestore reads of recovery":              month * recovery.reads,
			"Cloud Scheduler jobs":                     1,
			"Cloud Run requests of recovery":           month,
			"instance seconds of recovery, 0.2 s each": month / 5,
			"bytes of recovery's log lines":            month * recovery.logs,
		},
	}

	rows := map[string][]string{}
	for _, row := range priced.FindAllStringSubmatch(page, -1) {
		rows[row[1]] = row
	}
	totals := summed.FindAllStringSubmatch(page, -1)
	if len(totals) != len(bills) {
		t.Errorf("%d totals, want %d", len(totals), len(bills))
	}
	for _, total := range totals {
		sum := 0.0
		for name, count := range bills[total[1]] {
			row, ok := rows[name]
			if !ok {
				t.Errorf("there is no price of %s", name)
				continue
			}
			if got := number(row[2]); got != count {
				t.Errorf("%s: %v, want %v", name, got, count)
			}
			price := count * number(row[3]) / number(row[4])
			if got := number(row[5]); math.Abs(got-price) > 0.00005 {
				t.Errorf("%s cost $%v, want $%.4f", name, got, price)
			}
			sum += price
		}
		if got := number(total[2]); sum == 0 || math.Abs(got-sum) > 0.00005 {
			t.Errorf("%s: $%v, want $%.4f", total[1], got, sum)
		}
	}

	parts := regexp.MustCompile(`\$([\d.]+) and \$([\d.]+) a second`).FindStringSubmatch(page)
	if got := number(rows["instance seconds, ten runs at once"][3]); got != number(parts[1])+number(parts[2]) {
		t.Errorf("an instance costs $%v a second, and its parts $%s and $%s", got, parts[1], parts[2])
	}
	daily := regexp.MustCompile(`each minute: ([\d,]+) reads a day`).FindStringSubmatch(page)
	if got, want := number(daily[1]), 24*60*recovery.reads; got != want {
		t.Errorf("recovery reads %v a day, want %v", got, want)
	}
}
