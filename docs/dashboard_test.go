package docs

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/monitoring/v1"
)

var interpolated = regexp.MustCompile(`\$\{(\w+)\}`)

// dashboard decodes what the module gives to Google, as strictly as Google does.
func dashboard(t *testing.T, m *terraform) (d monitoring.Dashboard) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader([]byte(text(t, m.of(t, "google_monitoring_dashboard.taskguard", "dashboard_json")))))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatal(err)
	}
	return d
}

func charts(t *testing.T, m *terraform) (all []*monitoring.Widget) {
	t.Helper()
	d := dashboard(t, m)
	for _, tile := range d.MosaicLayout.Tiles {
		all = append(all, tile.Widget)
	}
	if len(all) < 5 {
		t.Errorf("%d charts: does this test still see?", len(all))
	}
	return all
}

func TestTheDashboardsTilesFillItWithoutOverlap(t *testing.T) {
	d := dashboard(t, planned(t, required))
	taken := map[[2]int64]string{}
	for _, tile := range d.MosaicLayout.Tiles {
		if tile.Widget.Title == "" || tile.Widget.XyChart == nil || len(tile.Widget.XyChart.DataSets) == 0 {
			t.Errorf("%+v shows nothing", tile)
		}
		if tile.XPos+tile.Width > d.MosaicLayout.Columns || tile.Width < 1 || tile.Height < 1 {
			t.Errorf("%s does not fit", tile.Widget.Title)
		}
		for x := tile.XPos; x < tile.XPos+tile.Width; x++ {
			for y := tile.YPos; y < tile.YPos+tile.Height; y++ {
				if other := taken[[2]int64{x, y}]; other != "" {
					t.Fatalf("%s lies on %s", tile.Widget.Title, other)
				}
				taken[[2]int64{x, y}] = tile.Widget.Title
			}
		}
	}
}

// Google puts a label's value in for ${label}. One that the query drops has none, and
// of one that no legend names the lines look alike.
func TestALegendNamesTheLabelsThatItsQueryKeeps(t *testing.T) {
	for _, chart := range charts(t, planned(t, required)) {
		for _, set := range chart.XyChart.DataSets {
			var kept, named []string
			for _, by := range grouping.FindAllStringSubmatch(set.TimeSeriesQuery.PrometheusQuery, -1) {
				kept = append(kept, strings.Split(by[1], ", ")...)
			}
			kept = slices.DeleteFunc(kept, func(label string) bool { return label == "le" })
			for _, l := range interpolated.FindAllStringSubmatch(set.LegendTemplate, -1) {
				named = append(named, l[1])
			}
			if diff := cmp.Diff(sortedTexts(kept), sortedTexts(named)); diff != "" {
				t.Errorf("%s, %q: -kept +named:\n%s", chart.Title, set.LegendTemplate, diff)
			}
		}
	}
}
