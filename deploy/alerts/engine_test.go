package alerts

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// policy is a shipped alert.
type policy struct {
	name     string // without its prefix
	severity string
	query    string
	lasting  int // minutes
}

// policies returns the alerts of deploy/monitoring, which deploy/terraform makes.
func policies(t *testing.T) (all []policy) {
	t.Helper()
	paths, err := filepath.Glob("../monitoring/policies/*.json")
	if err != nil || len(paths) < 15 {
		t.Fatalf("%q, %v", paths, err)
	}
	for _, path := range paths {
		var p struct {
			DisplayName, Severity string
			Conditions            []struct {
				ConditionPrometheusQueryLanguage struct{ Query, Duration, EvaluationInterval string }
			}
		}
		data, err := os.ReadFile(path)
		if err = errors.Join(err, json.Unmarshal(data, &p)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		c := p.Conditions[0].ConditionPrometheusQueryLanguage
		lasting, err := time.ParseDuration(c.Duration)
		if err != nil || c.EvaluationInterval != "60s" {
			t.Fatalf("%s: %v, evaluated each %s", path, err, c.EvaluationInterval)
		}
		name := strings.TrimPrefix(p.DisplayName, "Taskguard: ")
		all = append(all, policy{name, p.Severity, c.Query, int(lasting.Minutes())})
	}
	return all
}

// samples are series of a sample a minute, by metric and labels, as PromQL writes them.
type samples map[string][]chunks.Sample

type sample struct {
	chunks.Sample // nil: the methods of histograms
	at            int64
	value         float64
}

func (s sample) T() int64                 { return s.at }
func (s sample) ST() int64                { return 0 }
func (s sample) F() float64               { return s.value }
func (s sample) Type() chunkenc.ValueType { return chunkenc.ValFloat }

// minute is a time of the simulation in milliseconds.
func minute(n int) int64 { return int64(n) * time.Minute.Milliseconds() }

// Querier implements [storage.Queryable].
func (s samples) Querier(_, _ int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: s.find}, nil
}

func (s samples) find(_ bool, _ *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, name := range slices.Sorted(maps.Keys(s)) {
		series, err := parser.NewParser(parser.Options{}).ParseMetric(name)
		if err != nil {
			return storage.ErrSeriesSet(err)
		}
		if !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(series.Get(m.Name)) }) {
			found = append(found, storage.NewListSeries(series, s[name]))
		}
	}
	return &list{SeriesSet: storage.EmptySeriesSet(), series: found}
}

// list is a set of series in their order.
type list struct {
	storage.SeriesSet // has no error and no warnings
	series            []storage.Series
	next              int
}

func (l *list) Next() bool         { l.next++; return l.next <= len(l.series) }
func (l *list) At() storage.Series { return l.series[l.next-1] }

// firing returns the minutes in which an alert is open: its condition has held for as long as it must.
func firing(t *testing.T, engine *promql.Engine, p policy, s samples, minutes int) (open []bool) {
	t.Helper()
	end := time.UnixMilli(minute(minutes))
	q, err := engine.NewRangeQuery(t.Context(), s, nil, p.query, time.UnixMilli(0), end, time.Minute)
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	defer q.Close()
	result := q.Exec(t.Context())
	matrix, err := result.Matrix()
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}

	holds := make([]bool, minutes+1)
	for _, series := range matrix {
		for _, point := range series.Floats {
			holds[point.T/minute(1)] = true
		}
	}
	open = make([]bool, minutes+1)
	since := 0 // the first minute in which the condition has held until now
	for m := range holds {
		if !holds[m] {
			since = m + 1
		}
		open[m] = holds[m] && m-since >= p.lasting
	}
	return open
}
