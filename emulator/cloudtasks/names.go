package cloudtasks

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	maxQueueID = 100
	maxTaskID  = 500
)

// checkLocation refuses what is not projects/P/locations/L.
func checkLocation(name string) error {
	if !isLocation(strings.Split(name, "/")) {
		return status.Error(codes.InvalidArgument, "parent: want projects/PROJECT/locations/LOCATION")
	}
	return nil
}

// checkQueueName refuses what is not projects/P/locations/L/queues/Q. field is
// the request's field that holds name.
func checkQueueName(field, name string) error {
	part := strings.Split(name, "/")
	if len(part) != 6 || !isLocation(part[:4]) || part[4] != "queues" || !isID(part[5], maxQueueID, "-") {
		return status.Errorf(codes.InvalidArgument,
			"%s: want projects/PROJECT/locations/LOCATION/queues/QUEUE, QUEUE of 1 to %d letters, digits and hyphens", field, maxQueueID)
	}
	return nil
}

// splitTaskName returns the queue's full name and the task's id.
func splitTaskName(name string) (queue, id string, err error) {
	queue, id, found := strings.Cut(name, "/tasks/")
	if !found || checkQueueName("name", queue) != nil || !isID(id, maxTaskID, "-_") {
		return "", "", status.Errorf(codes.InvalidArgument,
			"name: want QUEUE_NAME/tasks/TASK, TASK of 1 to %d letters, digits, hyphens and underscores", maxTaskID)
	}
	return queue, id, nil
}

// shortID returns the last segment of a resource name.
func shortID(name string) string {
	return name[strings.LastIndexByte(name, '/')+1:]
}

// location returns the projects/P/locations/L of a well-formed queue name.
func location(queue string) string {
	return queue[:strings.LastIndex(queue, "/queues/")]
}

func isLocation(part []string) bool {
	return len(part) == 4 &&
		part[0] == "projects" && isID(part[1], 128, "-:.") &&
		part[2] == "locations" && isID(part[3], 64, "-")
}

// isID reports whether s has 1 to most bytes, all ASCII letters, digits or in
// others.
func isID(s string, most int, others string) bool {
	if s == "" || len(s) > most {
		return false
	}
	for _, c := range []byte(s) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		digit := '0' <= c && c <= '9'
		if !letter && !digit && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return true
}
