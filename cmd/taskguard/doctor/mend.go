package doctor

import (
	"fmt"
	"strings"
)

// mend is how to change a service's settings.
func (s Service) mend(line, flags string) string {
	if s.Settings.Live {
		return s.Settings.Value.gcloud("update", flags)
	}
	return line + " in " + s.Settings.From
}

// correct is how to change variables.
func (s Service) correct(variables string) string {
	if s.Environment.Live {
		return "Correct " + variables + ": " + s.Settings.Value.gcloud("update", "--update-env-vars=NAME=VALUE")
	}
	return "Correct " + variables + " in " + s.Environment.From
}

// set is how to set a variable.
func (s Service) set(variable, value string) string {
	if s.Environment.Live {
		return s.Settings.Value.gcloud("update", "--update-env-vars="+variable+"="+value)
	}
	return variable + "=" + value + " in " + s.Environment.From
}

// remove is how to remove a variable.
func (s Service) remove(variable string) string {
	if s.Environment.Live {
		return s.Settings.Value.gcloud("update", "--remove-env-vars="+variable)
	}
	return "Remove " + variable + " from " + s.Environment.From
}

// fromSecret is how a variable comes to have its value from Secret Manager, in one
// revision: between two, a service would start without.
func (s Service) fromSecret(variable, secret string) string {
	if s.Environment.Live {
		return s.Settings.Value.gcloud("update", "--remove-env-vars="+variable+" --update-secrets="+variable+"="+secret+":latest")
	}
	return "valueFrom: {secretKeyRef: {name: " + secret + ", key: latest}} for " + variable + " in " + s.Environment.From
}

// gcloud is a command about the service.
func (s Settings) gcloud(verb, flags string) string {
	name, region := s.Name, ""
	if name == "" {
		name = "SERVICE"
	}
	if s.Region != "" {
		region = " --region=" + s.Region
	}
	return fmt.Sprintf("gcloud run services %s %s%s%s %s", verb, name, region, inProject(s.Project), flags)
}

// inProject says to gcloud which project it is, which may be another one than the
// configured, as GOOGLE_CLOUD_PROJECT may; empty: unknown.
func inProject(project string) string {
	if project == "" {
		return ""
	}
	return " --project=" + project
}

// mendQueue is how to change the queue's settings.
func mendQueue(v *view, flags ...string) string {
	if !v.Queue.Live {
		for i, flag := range flags {
			flags[i] = strings.Replace(flag, "=", ": ", 1)
		}
		return strings.Join(flags, ", ") + " in " + v.Queue.From
	}
	return v.Queue.Value.gcloud("update", strings.Join(flags, " "))
}

// thenTraffic adds to a fix that makes a revision of a service how that revision
// comes to serve, where the traffic is pinned to another.
func (f Facts) thenTraffic(fix string) string {
	for _, s := range []*Settings{&f.Worker.Settings.Value, &f.Doclock.Settings.Value} {
		if s.Revisions.Pinned && strings.Contains(fix, s.gcloud("update", "")) {
			return strings.TrimSuffix(fix, ".") + "; then, as releases pin the traffic to a revision: " + s.gcloud("update-traffic", "--to-latest")
		}
	}
	return fix
}
