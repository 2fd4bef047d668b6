package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	firestore "google.golang.org/api/firestore/v1"
	"google.golang.org/api/googleapi"
	run "google.golang.org/api/run/v1"
	"google.golang.org/grpc/codes"
)

// callTimeout bounds the calls for one part.
const callTimeout = 15 * time.Second

// ask reads a part by a call of Google's APIs.
func (r *reader) ask(ctx context.Context, p Part, from string, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := call(ctx)
	var api *googleapi.Error
	switch {
	case err == nil:
	case !errors.As(err, &api):
		err = fmt.Errorf("%s: %s", from, oneLine(err.Error()))
	case api.Code == http.StatusNotFound:
		err = fmt.Errorf("%s does not exist, or is in another project or region", from)
	default:
		err = fmt.Errorf("%s: Google answers %d: %s", from, api.Code, oneLine(api.Message))
	}
	r.done(p, from, err)
}

// askService reads projects/P/locations/L/services/S and its IAM policy.
func (r *reader) askService(ctx context.Context, name string, s *Service, settings, callers Part) {
	api, err := run.NewService(ctx, r.Google...)
	if err != nil {
		r.done(settings, name, err)
		r.done(callers, name, err)
		return
	}
	r.ask(ctx, settings, name, func(ctx context.Context) error {
		got, err := api.Projects.Locations.Services.Get(name).Context(ctx).Do()
		if err != nil {
			return err
		}

		var serves *run.Revision
		if revision, newest, _ := serving(got); revision != newest {
			parent, _, _ := strings.Cut(name, "/services/")
			revision = parent + "/revisions/" + revision
			if serves, err = api.Projects.Locations.Revisions.Get(revision).Context(ctx).Do(); err != nil {
				return err
			}
		}

		template, err := parseService(got, nil)
		if err != nil {
			return err
		}
		s.Settings, err = parseService(got, serves)
		if reflect.DeepEqual(template, s.Settings) { // such as after a roll-back: nothing waits for traffic
			s.Newest = s.Serving
		}
		return err
	})

	r.ask(ctx, callers, "the IAM policy of "+name, func(ctx context.Context) error {
		services := api.Projects.Locations.Services
		policy, err := services.GetIamPolicy(name).Context(ctx).OptionsRequestedPolicyVersion(3).Do()
		if err != nil {
			return err
		}
		for _, b := range policy.Bindings {
			if slices.Contains([]string{"roles/run.invoker", "roles/run.servicesInvoker", "roles/run.admin"}, b.Role) {
				s.Callers = append(s.Callers, b.Members...)
			}
		}
		return nil
	})
}

// askQueue reads projects/P/locations/L/queues/Q.
func (r *reader) askQueue(ctx context.Context, name string) {
	r.ask(ctx, QueueSettings, name, func(ctx context.Context) error {
		api, err := cloudtasks.NewService(ctx, r.Google...)
		if err != nil {
			return err
		}
		got, err := api.Projects.Locations.Queues.Get(name).Context(ctx).Do()
		if err != nil {
			return err
		}
		r.facts.Queue, err = parseQueue(got)
		return err
	})
}

// ownFields selects the fields that have settings of their own or a TTL policy.
const ownFields = "indexConfig.usesAncestorConfig:false OR ttlConfig:*"

// askIndexes reads the indexes of the kinds' collection groups, and the settings of ownFields in
// all groups, which include those that a group inherits.
func (r *reader) askIndexes(ctx context.Context, database string) {
	r.ask(ctx, DatabaseIndexes, "the indexes of "+database, func(ctx context.Context) error {
		api, err := firestore.NewService(ctx, r.Google...)
		if err != nil {
			return err
		}

		all, groups := newIndexes(), api.Projects.Databases.CollectionGroups
		for i := range r.facts.Kinds {
			group := path.Base(r.facts.Kinds[i].Collection)
			add := func(p *firestore.GoogleFirestoreAdminV1ListIndexesResponse) error {
				for _, i := range p.Indexes {
					all.add(group, i)
				}
				return nil
			}
			if err = groups.Indexes.List(database+"/collectionGroups/"+group).Pages(ctx, add); err != nil {
				return err
			}
		}

		fields := groups.Fields.List(database + "/collectionGroups/-").Filter(ownFields)
		err = fields.Pages(ctx, all.addFields)
		r.facts.Indexes = all
		return err
	})
}

// askJobs reads the jobs of projects/P/locations/L that call by HTTP.
func (r *reader) askJobs(ctx context.Context, parent string) {
	r.ask(ctx, SchedulerJobs, "Cloud Scheduler in "+parent, func(ctx context.Context) error {
		api, err := scheduler.NewService(ctx, r.Google...)
		if err != nil {
			return err
		}
		return api.Projects.Locations.Jobs.List(parent).Pages(ctx, r.addJobs)
	})
}

func (r *reader) addJobs(p *scheduler.ListJobsResponse) error {
	for _, j := range p.Jobs {
		if j.HttpTarget == nil {
			continue
		}
		job := Job{Name: path.Base(j.Name), State: j.State, URI: j.HttpTarget.Uri}
		job.Method = cmp.Or(j.HttpTarget.HttpMethod, http.MethodPost)
		if s := j.Status; s != nil && s.Code > 0 { // -1: it has never run
			code := codes.Code(uint32(s.Code)) //nolint:gosec // above 0
			job.Failure = oneLine(fmt.Sprintf("%s %s", code, s.Message))
		}
		r.facts.Jobs = append(r.facts.Jobs, job)
	}
	return nil
}
