package env

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/compute/metadata"
)

// ProjectHere asks the metadata server for the project. Only Google's machines have that server.
func ProjectHere(ctx context.Context, emulator string) (string, error) {
	const problem = "GOOGLE_CLOUD_PROJECT: not set, and there is no metadata server"
	if emulator != "" {
		return "", errors.New("GOOGLE_CLOUD_PROJECT: must be set with FIRESTORE_EMULATOR_HOST, to any name")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if !metadata.OnGCEWithContext(ctx) {
		return "", errors.New(problem)
	}
	id, err := metadata.ProjectIDWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", problem, err)
	}
	return id, nil
}
