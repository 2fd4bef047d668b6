package cloudtasks

import (
	"regexp"
	"strings"
	"time"
)

// nameHeld is how long the name of a finished task is refused. The service documents
// up to 24 h, and the longest time finds the most callers that reuse names.
const nameHeld = 24 * time.Hour

var (
	queueName = regexp.MustCompile(`^projects/[A-Za-z0-9:.-]+/locations/[A-Za-z0-9-]+/queues/[A-Za-z0-9-]{1,100}$`)
	taskID    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,500}$`)
)

// checkQueueName refuses a name that is not projects/P/locations/L/queues/Q.
// field is the request's field that holds name.
func checkQueueName(field, name string) error {
	if !queueName.MatchString(name) {
		return invalid(field, "want projects/PROJECT/locations/LOCATION/queues/QUEUE, "+
			"QUEUE of 1 to 100 letters, digits and hyphens")
	}
	return nil
}

// splitTaskName returns the queue's full name and the task's id.
func splitTaskName(name string) (queue, id string, err error) {
	i := max(0, strings.LastIndex(name, "/tasks/")) // the queue may have the name tasks too
	queue, id = name[:i], strings.TrimPrefix(name[i:], "/tasks/")
	if !queueName.MatchString(queue) || !taskID.MatchString(id) {
		return "", "", invalid("name", "want QUEUE_NAME/tasks/TASK, "+
			"TASK of 1 to 500 letters, digits, hyphens and underscores")
	}
	return queue, id, nil
}
