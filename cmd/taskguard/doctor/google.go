package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	scheduler "google.golang.org/api/cloudscheduler/v1"
	cloudtasks "google.golang.org/api/cloudtasks/v2"
	firestore "google.golang.org/api/firestore/v1"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	run "google.golang.org/api/run/v1"
	"google.golang.org/grpc/codes"
)

// callTimeout is for one part; a call that is slow is not going to be fast.
const callTimeout = 15 * time.Second

// google reads through Google's APIs.
type google struct{ options []option.ClientOption }

// ask makes a part of what call answers within callTimeout. what names it.
func ask[T any](ctx context.Context, what string, call func(context.Context) (T, error)) Part[T] {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	v, err := call(ctx)
	if err != nil {
		return failed[T](explain(what, err))
	}
	return Part[T]{Value: v, From: what, Live: true}
}

// explain puts an API's refusal into words.
func explain(what string, err error) error {
	var api *googleapi.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %v", what, callTimeout)
	case !errors.As(err, &api):
		text := oneLine(err.Error())
		if strings.Contains(text, "could not find default credentials") {
			return errors.New("no credentials: gcloud auth application-default login")
		}
		return fmt.Errorf("%s: %s", what, text)
	case api.Code == 404:
		return fmt.Errorf("%s does not exist, or in another project or region", what)
	}
	message := api.Message
	if message == "" {
		message = "no message"
	}
	return fmt.Errorf("%s: Google answers %d: %s", what, api.Code, oneLine(message))
}

// service reads projects/P/locations/L/services/S and who may call it.
func (g google) service(ctx context.Context, name string) Service {
	type both struct {
		env      Environment
		settings Settings
	}
	api, err := run.NewService(ctx, g.options...)
	if err != nil {
		err = explain(name, err)
		return Service{failed[Environment](err), failed[Settings](err), failed[[]string](err)}
	}
	p := ask(ctx, name, func(ctx context.Context) (b both, err error) {
		s, err := api.Projects.Locations.Services.Get(name).Context(ctx).Do()
		if err != nil {
			return b, err
		}
		b.env, b.settings, err = parseService(s)
		b.settings.Project, _, _ = resource(name)
		return b, err
	})
	callers := ask(ctx, "the IAM policy of "+name, func(ctx context.Context) ([]string, error) {
		policy, err := api.Projects.Locations.Services.GetIamPolicy(name).Context(ctx).OptionsRequestedPolicyVersion(3).Do()
		if err != nil {
			return nil, err
		}
		return invokers(policy), nil
	})
	return Service{
		Part[Environment]{p.Value.env, p.From, p.Live, p.Why, p.Failed}, Part[Settings]{p.Value.settings, p.From, p.Live, p.Why, p.Failed}, callers,
	}
}

// invokers are the members of the roles that may invoke a service.
func invokers(p *run.Policy) (members []string) {
	for _, b := range p.Bindings {
		if slices.Contains([]string{"roles/run.invoker", "roles/run.servicesInvoker", "roles/run.admin"}, b.Role) {
			members = append(members, b.Members...)
		}
	}
	return members
}

// queue reads projects/P/locations/L/queues/Q.
func (g google) queue(ctx context.Context, name string) Part[Queue] {
	return ask(ctx, name, func(ctx context.Context) (q Queue, err error) {
		api, err := cloudtasks.NewService(ctx, g.options...)
		if err != nil {
			return q, err
		}
		got, err := api.Projects.Locations.Queues.Get(name).Context(ctx).Do()
		if err != nil {
			return q, err
		}
		return parseQueue(got)
	})
}

// database reads projects/P/databases/D.
func (g google) database(ctx context.Context, name string) Part[Database] {
	return ask(ctx, name, func(ctx context.Context) (d Database, err error) {
		api, err := firestore.NewService(ctx, g.options...)
		if err != nil {
			return d, err
		}
		got, err := api.Projects.Databases.Get(name).Context(ctx).Do()
		if err != nil {
			return d, err
		}
		return Database{Name: name, Type: got.Type}, nil
	})
}

// indexes reads those of a collection group of a database, and the settings of
// fields in all groups, among which are those that a group inherits.
func (g google) indexes(ctx context.Context, database, group string) Part[Indexes] {
	parent := database + "/collectionGroups/" + group
	return ask(ctx, "the indexes of "+parent, func(ctx context.Context) (all Indexes, err error) {
		api, err := firestore.NewService(ctx, g.options...)
		if err != nil {
			return all, err
		}
		groups := api.Projects.Databases.CollectionGroups
		err = groups.Indexes.List(parent).Pages(ctx, func(p *firestore.GoogleFirestoreAdminV1ListIndexesResponse) error {
			all.addIndexes(group, p.Indexes)
			return nil
		})
		if err != nil {
			return all, err
		}
		err = groups.Fields.List(database+"/collectionGroups/-").Filter("indexConfig.usesAncestorConfig:false").Pages(ctx, func(p *firestore.GoogleFirestoreAdminV1ListFieldsResponse) error {
			all.addFields(p.Fields)
			return nil
		})
		return all, err
	})
}

// jobs reads those of projects/P/locations/L that call by HTTP.
func (g google) jobs(ctx context.Context, parent string) Part[Jobs] {
	return ask(ctx, "Cloud Scheduler in "+parent, func(ctx context.Context) (all Jobs, err error) {
		all.Project, all.Region = strings.Split(parent, "/")[1], path.Base(parent)
		api, err := scheduler.NewService(ctx, g.options...)
		if err != nil {
			return all, err
		}
		err = api.Projects.Locations.Jobs.List(parent).Pages(ctx, func(p *scheduler.ListJobsResponse) error {
			for _, j := range p.Jobs {
				if j.HttpTarget != nil {
					all.List = append(all.List, parseJob(j))
				}
			}
			return nil
		})
		return all, err
	})
}

func parseJob(j *scheduler.Job) *Job {
	job := &Job{Name: j.Name, State: j.State, Method: j.HttpTarget.HttpMethod, URI: j.HttpTarget.Uri}
	if job.Method == "" || job.Method == "HTTP_METHOD_UNSPECIFIED" {
		job.Method = http.MethodPost
	}
	if t := j.HttpTarget.OidcToken; t != nil {
		job.Account, job.Audience = t.ServiceAccountEmail, t.Audience
		if job.Audience == "" {
			job.Audience = job.URI
		}
	}
	if s := j.Status; s != nil && s.Code > 0 { // -1: it has never run
		job.Failure = oneLine(fmt.Sprintf("%s %s", codes.Code(uint32(s.Code)), s.Message)) //nolint:gosec // it is above 0, and an unknown one is printed as a number
	}
	return job
}
