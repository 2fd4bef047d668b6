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

	projects "google.golang.org/api/cloudresourcemanager/v1"
	scheduler "google.golang.org/api/cloudscheduler/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	firestore "google.golang.org/api/firestore/v1"
	"google.golang.org/api/googleapi"
	iam "google.golang.org/api/iam/v1"
	monitoring "google.golang.org/api/monitoring/v3"
	"google.golang.org/api/option"
	run "google.golang.org/api/run/v1"
	"google.golang.org/grpc/codes"
)

// google has the clients of Google's APIs.
type google struct {
	run       *run.APIService
	tasks     *cloudtasks.Service
	firestore *firestore.Service
	scheduler *scheduler.Service
	projects  *projects.Service
	iam       *iam.Service
	alerts    *monitoring.Service
}

// connect makes the clients.
func connect(ctx context.Context, options []option.ClientOption) (api google, err error) {
	var errs [7]error
	api.run, errs[0] = run.NewService(ctx, options...)
	api.tasks, errs[1] = cloudtasks.NewService(ctx, options...)
	api.firestore, errs[2] = firestore.NewService(ctx, options...)
	api.scheduler, errs[3] = scheduler.NewService(ctx, options...)
	api.projects, errs[4] = projects.NewService(ctx, options...)
	api.iam, errs[5] = iam.NewService(ctx, options...)
	api.alerts, errs[6] = monitoring.NewService(ctx, options...)
	return api, cmp.Or(errs[:]...)
}

// callTimeout bounds the calls for one part.
const callTimeout = 15 * time.Second

// ask reads a part by calls of Google's APIs.
func (r *reader) ask(ctx context.Context, p Part, source string, call func(context.Context, google) error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	clients, err := r.connect()
	if err != nil { // the same for all parts, which are reported as one
		r.done(p, "", err)
		return
	}

	err = call(ctx, clients)
	var api *googleapi.Error
	switch {
	case err == nil:
	case !errors.As(err, &api):
		err = fmt.Errorf("%s: %s", source, oneLine(err.Error()))
	case api.Code == http.StatusNotFound:
		err = fmt.Errorf("%s, or what it refers to, does not exist, or is in another project or region", source)
	default:
		err = fmt.Errorf("%s: Google answers %d: %s", source, api.Code, oneLine(api.Message))
	}
	r.done(p, source, err)
}

// askService reads projects/P/locations/L/services/S, and its IAM policy into the callers if they are a part.
func (r *reader) askService(ctx context.Context, name string, s *Service, settings, callers Part) {
	r.ask(ctx, settings, name, func(ctx context.Context, api google) error {
		got, err := api.run.Projects.Locations.Services.Get(name).Context(ctx).Do()
		if err != nil {
			return err
		}

		var serves *run.Revision
		if revision, newest, _ := serving(got); revision != newest {
			parent, _, _ := strings.Cut(name, "/services/")
			revision = parent + "/revisions/" + revision
			if serves, err = api.run.Projects.Locations.Revisions.Get(revision).Context(ctx).Do(); err != nil {
				return err
			}
		}

		template, err := parseService(got, nil)
		if err != nil {
			return err
		}
		*s, err = parseService(got, serves)
		template.Image = s.Image             // a release tests an image before it has traffic
		if reflect.DeepEqual(template, *s) { // after a roll-back, for example: no setting waits for traffic
			s.Newest = s.Serving
		}
		return cmp.Or(err, s.checkRole(settings, s.Name))
	})
	if callers == "" {
		return
	}

	r.ask(ctx, callers, "the IAM policy of "+name, func(ctx context.Context, api google) error {
		bindings, err := api.policy(ctx, name)
		for _, b := range bindings {
			if slices.Contains(invokers, b.Role) {
				s.Callers = append(s.Callers, b.Members...)
			}
		}
		return err
	})
}

// askQueue reads projects/P/locations/L/queues/Q.
func (r *reader) askQueue(ctx context.Context, name string) {
	r.ask(ctx, QueueSettings, name, func(ctx context.Context, api google) error {
		got, err := api.tasks.Projects.Locations.Queues.Get(name).Context(ctx).Do()
		if err != nil {
			return err
		}
		r.facts.Queue, err = parseQueue(got)
		return err
	})
}

// ownFields selects the fields that have settings of their own or a TTL policy.
const ownFields = "indexConfig.usesAncestorConfig:false OR ttlConfig:*"

// askIndexes reads the indexes of the kinds' collection groups. It reads the settings of ownFields
// in all groups, because a group inherits settings.
func (r *reader) askIndexes(ctx context.Context, database string) {
	r.ask(ctx, DatabaseIndexes, "the indexes of "+database, func(ctx context.Context, api google) error {
		all, groups := newIndexes(), api.firestore.Projects.Databases.CollectionGroups
		for i := range r.facts.Kinds {
			group := path.Base(r.facts.Kinds[i].Collection)
			add := func(p *firestore.GoogleFirestoreAdminV1ListIndexesResponse) error {
				for _, i := range p.Indexes {
					all.add(group, i)
				}
				return nil
			}
			if err := groups.Indexes.List(database+"/collectionGroups/"+group).Pages(ctx, add); err != nil {
				return err
			}
		}

		r.facts.Indexes = all
		return groups.Fields.List(database+"/collectionGroups/-").Filter(ownFields).Pages(ctx, all.addFields)
	})
}

// askJobs reads the jobs of projects/P/locations/L. If none of them calls the worker's recovery, it also
// reads the jobs of the other locations that it may read.
func (r *reader) askJobs(ctx context.Context, project, parent string) {
	r.ask(ctx, SchedulerJobs, "Cloud Scheduler in "+parent, func(ctx context.Context, api google) error {
		locations := api.scheduler.Projects.Locations
		list := func(name string) error {
			return locations.Jobs.List(name).Pages(ctx, func(p *scheduler.ListJobsResponse) error {
				r.facts.Jobs = append(r.facts.Jobs, p.Jobs...)
				return nil
			})
		}
		if err := list(parent); err != nil || r.Service == "" || len(diagnose(r.facts).recoveryJobs()) > 0 {
			return err
		}

		var unread error
		all := locations.List(project).Pages(ctx, func(p *scheduler.ListLocationsResponse) error {
			for _, l := range p.Locations { // parent again, which adds no job of recovery
				unread = cmp.Or(unread, list(l.Name))
			}
			return nil
		})
		r.facts.AllJobs = cmp.Or(all, unread) == nil
		return nil
	})
}

// askOptional reads one of the optional parts.
func (r *reader) askOptional(ctx context.Context, p Part, queue, project string) {
	r.ask(ctx, p, project, func(ctx context.Context, api google) error {
		switch p {
		case QueueTasks:
			return r.askTasks(ctx, api, queue)
		case AccountRoles:
			database, job := project+"/databases/"+r.facts.Indexes.Database, diagnose(r.facts).config.Job
			return r.askGrants(ctx, api, neededGrants(queue, r.env("TASK_CALLER"), database, job), project)
		}
		return r.askAlerts(ctx, api, project)
	})
}

// askTasks reads a page of a queue's tasks, without their bodies.
func (r *reader) askTasks(ctx context.Context, api google, queue string) error {
	const fields = "tasks(name,dispatchDeadline,httpRequest(url,oidcToken),lastAttempt/responseStatus/code)"
	list := api.tasks.Projects.Locations.Queues.Tasks.List(queue).ResponseView("FULL").PageSize(100)
	got, err := list.Fields(fields).Context(ctx).Do()
	if err != nil {
		return err
	}

	for _, t := range got.Tasks {
		request := cmp.Or(t.HttpRequest, &cloudtasks.HttpRequest{})
		last := cmp.Or(cmp.Or(t.LastAttempt, &cloudtasks.Attempt{}).ResponseStatus, &cloudtasks.Status{})
		code := codes.Code(last.Code) //nolint:gosec // small and not negative
		task := Task{Name: path.Base(t.Name), URL: request.Url, Last: code}
		if request.OidcToken != nil {
			task.Audience = cmp.Or(request.OidcToken.Audience, request.Url)
		}
		if task.Deadline, err = time.ParseDuration(cmp.Or(t.DispatchDeadline, "10m")); err != nil {
			return fmt.Errorf("task %s: %w", task.Name, err)
		}
		r.facts.Tasks = append(r.facts.Tasks, task)
	}
	return nil
}

// deployment returns NAME, where the worker's service is NAME-worker.
func (s Service) deployment() string { return strings.TrimSuffix(s.Name, "-worker") }

// askAlerts counts the alert policies whose names deploy gives them, "Taskguard: …".
func (r *reader) askAlerts(ctx context.Context, api google, project string) error {
	return api.alerts.Projects.AlertPolicies.List(project).Pages(ctx, func(p *monitoring.ListAlertPoliciesResponse) error {
		for _, a := range p.AlertPolicies {
			deployment, _, _ := strings.Cut(a.DisplayName, ": ")
			if !strings.EqualFold(deployment, r.facts.Worker.deployment()) {
				continue
			}
			if !a.Enabled {
				r.facts.Disabled++
			} else if r.facts.Alerts++; len(a.NotificationChannels) == 0 {
				r.facts.Unsent++
			}
		}
		return nil
	})
}
