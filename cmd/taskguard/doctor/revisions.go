package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	run "google.golang.org/api/run/v1"
)

// Revisions are what Cloud Run says of a service's; in a file they are unknown.
type Revisions struct {
	Created, Ready string           // the latest of each
	NotReady       string           // why the service is not; empty: it is, or unknown
	Underway       bool             // Cloud Run still works on it
	Pinned         bool             // the traffic is told to go to a revision by its name
	Shares         map[string]int64 // of the traffic, in percent by revision; empty: unknown
}

// revisions reads those of a service. A share of 0 is a tag's alone.
func revisions(s *run.Service) (r Revisions) {
	for _, t := range s.Spec.Traffic {
		r.Pinned = r.Pinned || t != nil && t.RevisionName != "" && t.Percent > 0
	}
	if s.Status == nil {
		return r
	}
	r.Created, r.Ready, r.Shares = s.Status.LatestCreatedRevisionName, s.Status.LatestReadyRevisionName, map[string]int64{}
	for _, c := range s.Status.Conditions {
		if c != nil && c.Type == "Ready" && c.Status != "True" {
			r.Underway = c.Status == "Unknown"
			r.NotReady = oneLine(cmp.Or(c.Message, c.Reason, "it says no reason"))
		}
	}
	for _, t := range s.Status.Traffic {
		if t != nil && t.Percent > 0 {
			r.Shares[cmp.Or(t.RevisionName, r.Ready)] += t.Percent
		}
	}
	return r
}

// notReady finds settings that Cloud Run could not make a running revision of.
func (n names) notReady(_ *view, s Service) []Finding {
	r := s.Settings.Value.Revisions
	why, severity := r.NotReady, Problem
	if why == "" && r.Created != r.Ready {
		why = "its latest revision, " + r.Created + ", is not"
	}
	if r.Underway {
		severity = Advice
		why = "Cloud Run still works on it: " + why
	}
	return one(why != "", severity,
		fmt.Sprintf("%s is not ready: %s. What serves is an earlier revision, if any.", s.Settings.Value.Name, strings.TrimRight(why, ".")),
		fmt.Sprintf("gcloud logging read 'resource.labels.revision_name=%q'%s --limit=20 --freshness=1d says why it did not start.", cmp.Or(r.Created, "REVISION"), inProject(s.Settings.Value.Project)))
}

// trafficElsewhere finds settings that are not, or not alone, those that serve.
func (n names) trafficElsewhere(_ *view, s Service) []Finding {
	r, set := s.Settings.Value.Revisions, s.Settings.Value
	if len(r.Shares) == 0 || r.Ready == "" || len(r.Shares) == 1 && r.Shares[r.Ready] > 0 {
		return nil
	}
	var shares []string
	for _, name := range slices.Sorted(maps.Keys(r.Shares)) {
		shares = append(shares, fmt.Sprintf("%s %d %%", name, r.Shares[name]))
	}
	return one(true, Advice,
		fmt.Sprintf("%s serves with %s, and its latest ready revision is %s: what is said here of its settings is true of the latest one.", set.Name, strings.Join(shares, ", "), r.Ready),
		"Where the latest one is proven: "+set.gcloud("update-traffic", "--to-revisions="+r.Ready+"=100"))
}
