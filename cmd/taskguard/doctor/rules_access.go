package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

func accessRules() []rule {
	return []rule{
		{"caller-not-invoker", []part{workerEnvironment, workerCallers}, callerNotInvoker},
		{"caller-slip", []part{workerEnvironment}, callerSlip},
		{"queue-role", []part{workerEnvironment, workerSettings, queueAccess, projectAccess}, noQueueRole},
		{"act-as", []part{workerEnvironment, workerSettings, callerAccess, projectAccess}, noActAs},
	}
}

func callerNotInvoker(v *view) []Finding {
	caller := v.Worker.Environment.Value.value("TASK_CALLER")
	may, sure := v.invoker(v.Worker, caller)
	slip := ""
	if near := nearest(caller, members(v.Worker.Callers.Value)); near != "" {
		slip = " It lets " + near + ", which is nearly the same."
	}
	return one(mode(v.Worker) == "iam" && caller != "" && !may, weight(sure),
		fmt.Sprintf("TASK_CALLER is %s, which the service's policy does not let invoke it: each delivery is answered 403, %s.%s", caller, unless(sure), slip),
		v.Worker.Settings.Value.gcloud("add-iam-policy-binding", "--member=serviceAccount:"+caller+" --role=roles/run.invoker"))
}

// members are the service accounts among those of a policy.
func members(all []string) (accounts []string) {
	for _, m := range all {
		if account, is := strings.CutPrefix(m, "serviceAccount:"); is {
			accounts = append(accounts, account)
		}
	}
	return accounts
}

// callerSlip finds a TASK_CALLER that is nearly, and not, who calls elsewhere; where
// the policy was read, caller-not-invoker knows better.
func callerSlip(v *view) []Finding {
	caller, others := v.Worker.Environment.Value.value("TASK_CALLER"), accounts(v.Doclock.Environment.Value)
	for _, j := range v.Jobs.Value.List {
		others = append(others, j.Account)
	}
	near := nearest(caller, others)
	_, project, _ := strings.Cut(caller, "@") // another one is account-elsewhere's
	return one(near != "" && strings.HasSuffix(near, "@"+project) && !v.Worker.Callers.Known() && !slices.Contains(others, caller), Advice,
		fmt.Sprintf("TASK_CALLER is %s, and the account that calls elsewhere is %s, which is nearly the same.", caller, near),
		v.Worker.set("TASK_CALLER", near)+", unless both exist.")
}

// accountElsewhere finds accounts of another project than the service's and the
// queue's.
func (n names) accountElsewhere(_ *view, s Service) (found []Finding) {
	e := s.Environment.Value
	queue, _, _ := queueParts(e.value("TASK_QUEUE"))
	own := []string{cmp.Or(e.value("GOOGLE_CLOUD_PROJECT"), queue), queue}
	for _, account := range slices.Compact(append([]string{s.Settings.Value.Account, e.value("TASK_CALLER")}, accounts(e)...)) {
		m := callerAccount.FindStringSubmatch(account)
		found = append(found, one(m != nil && own[0] != "" && !slices.Contains(own, m[1]), Advice,
			fmt.Sprintf("%s, which %s has, is an account of another project than %s: what is signed as an account that does not exist is refused.", account, n.title, own[0]),
			fmt.Sprintf("%s@%s.iam.gserviceaccount.com instead, unless the other project is meant.", strings.Split(account, "@")[0], own[0]))...)
	}
	return found
}

// unless is what else could grant a role.
func unless(sure bool) string {
	if sure {
		return "unless a folder or the organisation grants it"
	}
	return "unless a role on the whole project lets it, which could not be read"
}

// noDatabaseRole finds a service that may not use the database.
func (n names) noDatabaseRole(v *view, s Service) []Finding {
	account, p := s.Settings.Value.Account, v.Access.Project.Value
	its := s.Environment.Value.value("GOOGLE_CLOUD_PROJECT")
	if m := callerAccount.FindStringSubmatch(account); its == "" && m != nil {
		its = m[1] // from the metadata server, which tells the service's own
	}
	if account == "" || its != "" && its != p.Project || p.grants(account, "roles/datastore.user", "roles/datastore.owner") {
		return nil
	}
	return one(true, Problem,
		fmt.Sprintf("%s, which %s runs as, has no role on the project with which it could use Firestore, %s.", account, n.title, unless(true)),
		fmt.Sprintf("gcloud projects add-iam-policy-binding %s --role=roles/datastore.user --member=serviceAccount:%s --condition=None", p.Project, account))
}

// noQueueRole finds a worker that may not book deliveries.
func noQueueRole(v *view) []Finding {
	account, q := v.Worker.Settings.Value.Account, v.worker.Queue
	if q == nil || account == "" || v.granted(v.Access.Queue.Value, account, "roles/cloudtasks.enqueuer", "roles/cloudtasks.admin") {
		return nil
	}
	return one(true, Problem,
		fmt.Sprintf("%s, which the worker runs as, may not create tasks in %s: no follow-up and no recovery is booked, %s.", account, q.Queue, unless(true)),
		Queue{Name: q.Queue}.gcloud("add-iam-policy-binding", "--role=roles/cloudtasks.enqueuer --member=serviceAccount:"+account))
}

// noActAs finds a worker that may not have its tasks signed.
func noActAs(v *view) []Finding {
	account, q := v.Worker.Settings.Value.Account, v.worker.Queue
	if q == nil || account == "" || v.granted(v.Access.Caller.Value, account, "roles/iam.serviceAccountUser") {
		return nil
	}
	return one(true, Problem,
		fmt.Sprintf("%s, which the worker runs as, may not act as TASK_CALLER, %s: no follow-up and no recovery is booked, %s.", account, q.Caller, unless(true)),
		fmt.Sprintf("gcloud iam service-accounts add-iam-policy-binding %s --role=roles/iam.serviceAccountUser --member=serviceAccount:%s", q.Caller, account))
}

// granted reports whether p or its project's policy may give the account a role.
func (f Facts) granted(p Policy, account string, roles ...string) bool {
	project := f.Access.Project.Value
	return p.grants(account, roles...) || project.Project != p.Project || project.grants(account, roles...)
}
