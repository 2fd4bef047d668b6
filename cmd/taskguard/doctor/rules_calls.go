package doctor

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// call is what Cloud Scheduler should do each minute.
type call struct {
	name, job, route string
	without          string // what happens where nobody calls
	service          names
	wanted           func(*view) bool
	bases            func(*view) []string // the service's addresses, as far as they are known
}

// recovery books what nobody works on.
func recovery() call {
	return call{
		name: "recovery", job: "taskguard-recover", route: "/internal/tasks/recover",
		without: "an analysis whose worker died, or whose task was lost, stays as it is",
		service: workerNames(),
		wanted:  func(v *view) bool { return v.worker.Queue != nil },
		bases: func(v *view) []string {
			return append([]string{v.Worker.Environment.Value.value("TASK_TARGET_URL")}, v.Worker.Settings.Value.URLs...)
		},
	}
}

// sweeping deletes expired locks of rooms.
func sweeping() call {
	return call{
		name: "sweep", job: "taskguard-sweep", route: "/internal/sweep",
		without: "a room whose holder fell silent is never told to be free, since SWEEP_INTERVAL is 0",
		service: doclockNames(),
		wanted:  func(v *view) bool { return v.doclock.Sweep == 0 },
		bases: func(v *view) []string {
			return append([]string{v.Doclock.Environment.Value.value("TASK_AUDIENCE")}, v.Doclock.Settings.Value.URLs...)
		},
	}
}

func (c call) rules() []rule {
	on := func(name string, check func(*view) []Finding, more ...part) rule {
		return rule{c.name + "-" + name, append([]part{c.service.environment, jobs}, more...), func(v *view) []Finding {
			if !c.wanted(v) {
				return nil
			}
			return check(v)
		}}
	}
	return []rule{
		on("unscheduled", c.unscheduled), on("call", c.wrong), on("paused", c.paused), on("failed", c.failed), on("token", c.token),
		on("caller", c.foreignCaller, c.service.callers), on("audience", c.foreignAudience, c.service.settings),
	}
}

// find answers the jobs that make the call, and the others that go to the service.
func (c call) find(v *view) (right, others []*Job) {
	for _, j := range v.Jobs.Value.List {
		for _, base := range c.bases(v) {
			base = strings.TrimRight(base, "/")
			if base == "" || j.URI != base && !strings.HasPrefix(j.URI, base+"/") {
				continue
			}
			if j.URI == base+c.route && j.Method == http.MethodPost {
				right = append(right, j)
			} else {
				others = append(others, j)
			}
			break
		}
	}
	return right, others
}

// base is the address that the call should go to.
func (c call) base(v *view) string {
	for _, b := range c.bases(v) {
		if b != "" {
			return strings.TrimRight(b, "/")
		}
	}
	return "URL"
}

func (c call) unscheduled(v *view) []Finding {
	right, others := c.find(v)
	region := cmp.Or(v.Jobs.Value.Region, "LOCATION")
	return one(len(right)+len(others) == 0, Advice,
		fmt.Sprintf("No job of Cloud Scheduler in %s, the only region that was read, calls %s%s: unless one of another region does, %s.", region, c.base(v), c.route, c.without),
		fmt.Sprintf("gcloud scheduler jobs create http %s --location=%s%s --schedule='* * * * *' --attempt-deadline=60s --http-method=POST --uri=%s%s --oidc-service-account-email=%s --oidc-token-audience=%s",
			c.job, region, inProject(v.Jobs.Value.Project), c.base(v), c.route, c.account(v), c.audience(v)))
}

// account is who should sign the call.
func (c call) account(v *view) string {
	e := c.service.of(v.Facts).Environment.Value
	return cmp.Or(e.value("TASK_CALLER"), append(accounts(e), "ACCOUNT")[0])
}

// audience is what the call's token should be made for.
func (c call) audience(v *view) string {
	return cmp.Or(c.service.of(v.Facts).Environment.Value.value("TASK_AUDIENCE"), c.base(v))
}

// accounts are those of TASK_SERVICE_ACCOUNTS.
func accounts(e Environment) []string {
	return strings.FieldsFunc(e.value("TASK_SERVICE_ACCOUNTS"), func(r rune) bool { return r == ',' || r == ' ' })
}

// wrong finds a job that was meant to make the call, where none does.
func (c call) wrong(v *view) []Finding {
	right, others := c.find(v)
	if len(right) > 0 || len(others) == 0 {
		return nil
	}
	j := others[0]
	return one(true, Problem,
		fmt.Sprintf("The job %s calls %s %s, and none calls POST %s%s: %s.", j.short(), j.Method, j.URI, c.base(v), c.route, c.without),
		j.update("--http-method=POST --uri="+c.base(v)+c.route))
}

func (c call) paused(v *view) []Finding {
	right, _ := c.find(v)
	if len(right) == 0 || slices.ContainsFunc(right, (*Job).runs) {
		return nil
	}
	return one(true, Problem,
		fmt.Sprintf("The job %s is %s: %s.", right[0].short(), strings.ToLower(right[0].State), c.without),
		right[0].gcloud("resume"))
}

// failed finds a job whose last call was not answered with success.
func (c call) failed(v *view) []Finding {
	right, _ := c.find(v)
	for _, j := range right {
		if j.Failure != "" && j.runs() {
			return one(true, Problem,
				fmt.Sprintf("The last call of the job %s failed (%s): %s.", j.short(), strings.TrimRight(j.Failure, ". "), c.without),
				fmt.Sprintf("gcloud logging read 'resource.type=cloud_scheduler_job AND resource.labels.job_id=%s'%s --limit=5 says what it was answered.", j.short(), inProject(v.Jobs.Value.Project)))
		}
	}
	return nil
}

// token finds a job whose calls the service refuses.
func (c call) token(v *view) (found []Finding) {
	right, _ := c.find(v)
	s := c.service.of(v.Facts)
	e := s.Environment.Value
	for _, j := range right {
		switch {
		case j.Account == "":
			found = append(found, Finding{Severity: Problem,
				Problem: fmt.Sprintf("The job %s sends no OIDC token: %s refuses it.", j.short(), c.service.title),
				Fix:     j.update("--oidc-service-account-email=" + c.account(v) + " --oidc-token-audience=" + c.audience(v))})
		case mode(s) == "oidc" && !slices.Contains(accounts(e), j.Account):
			found = append(found, Finding{Severity: Problem,
				Problem: fmt.Sprintf("The job %s signs as %s, which is not in TASK_SERVICE_ACCOUNTS: %s answers 403.", j.short(), j.Account, c.service.title),
				Fix:     j.update("--oidc-service-account-email=" + append(accounts(e), "ACCOUNT")[0])})
		case mode(s) == "oidc" && j.Audience != e.value("TASK_AUDIENCE"):
			found = append(found, Finding{Severity: Problem,
				Problem: fmt.Sprintf("The tokens of the job %s are made for %q, TASK_AUDIENCE is %q: %s answers 401.", j.short(), j.Audience, e.value("TASK_AUDIENCE"), c.service.title),
				Fix:     j.update("--oidc-token-audience=" + e.value("TASK_AUDIENCE"))})
		}
	}
	return found
}

// foreignCaller finds a job that signs as somebody whom Cloud Run turns away.
func (c call) foreignCaller(v *view) (found []Finding) {
	right, _ := c.find(v)
	s := c.service.of(v.Facts)
	for _, j := range right {
		if mode(s) != "iam" || j.Account == "" || mayCall(j.Account, s.Callers.Value) || j.Account == s.Environment.Value.value("TASK_CALLER") {
			continue // caller-not-invoker speaks of TASK_CALLER
		}
		found = append(found, Finding{Severity: Advice,
			Problem: fmt.Sprintf("The job %s signs as %s, which the service's policy does not let invoke it: Cloud Run answers 403, %s.", j.short(), j.Account, inherited),
			Fix:     j.update("--oidc-service-account-email=" + c.account(v))})
	}
	return found
}

// foreignAudience finds a job whose tokens are made for somebody else. Cloud Run
// accepts an address of the service with or without a path.
func (c call) foreignAudience(v *view) (found []Finding) {
	right, _ := c.find(v)
	s := c.service.of(v.Facts)
	set := s.Settings.Value
	for _, j := range right {
		u, err := url.Parse(j.Audience)
		own := err == nil && set.owns(u.Scheme+"://"+u.Host) || slices.Contains(set.Audiences, j.Audience)
		if mode(s) != "iam" || j.Account == "" || len(set.URLs) == 0 || own {
			continue
		}
		found = append(found, Finding{Severity: Problem,
			Problem: fmt.Sprintf("The tokens of the job %s are made for %q, which is no address of %s: Cloud Run answers 401.", j.short(), j.Audience, set.Name),
			Fix:     j.update("--oidc-token-audience=" + set.URLs[0])})
	}
	return found
}

func (j *Job) runs() bool { return j.State == "" || j.State == "ENABLED" }

func (j *Job) short() string { return j.Name[strings.LastIndexByte(j.Name, '/')+1:] }

func (j *Job) update(flags string) string { return j.gcloud("update http") + " " + flags }

// gcloud is a command about the job.
func (j *Job) gcloud(verb string) string {
	project, location, name := resource(j.Name)
	return fmt.Sprintf("gcloud scheduler jobs %s %s --location=%s%s", verb, name, location, inProject(project))
}
