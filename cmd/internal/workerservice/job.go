package workerservice

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/api/option"
	run "google.golang.org/api/run/v2"
)

// jobScheme begins an ANALYZER that is a Cloud Run job.
const jobScheme = "job:"

var jobName = regexp.MustCompile(`^projects/[A-Za-z0-9.:-]+/locations/[A-Za-z0-9-]+/jobs/[a-z0-9-]{1,63}$`)

// startJob returns a Kind.Start that begins an execution of a Cloud Run job. The job's container is taskguard:
// its arguments become `run ID`. The returned function waits until Cloud Run has created the execution.
func startJob(ctx context.Context, job string, options ...option.ClientOption) (
	func(ctx context.Context, id string) error, error,
) {
	api, err := run.NewService(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("ANALYZER=job:… starts executions in Google Cloud, which needs credentials, also beside an "+
			"emulator: %w", err)
	}
	return func(ctx context.Context, id string) error {
		args := []string{"run", id}
		if strings.HasPrefix(id, "-") { // it must not be read as a flag
			args = []string{"run", "--", id}
		}
		request := &run.GoogleCloudRunV2RunJobRequest{Overrides: &run.GoogleCloudRunV2Overrides{
			ContainerOverrides: []*run.GoogleCloudRunV2ContainerOverride{{Args: args}},
		}}
		_, err := api.Projects.Locations.Jobs.Run(job, request).Context(ctx).Do()
		return err
	}, nil
}
