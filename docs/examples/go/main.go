// Command go submits one analysis and waits for its result:
//
//	go run ./docs/examples/go ID TEXT
//
// with the variables that `taskguard local` or `terraform output -raw environment` prints.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"cloud.google.com/go/firestore"

	"taskguard/worker"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: go run ./docs/examples/go ID TEXT")
	}
	ctx, id, text := context.Background(), os.Args[1], os.Args[2]
	collection := cmp.Or(os.Getenv("ANALYSES_COLLECTION"), "analyses")
	guard, err := worker.Open(ctx, worker.Options{Collection: collection, Queue: worker.Queue{
		Name: os.Getenv("TASK_QUEUE"), TargetURL: os.Getenv("TASK_TARGET_URL"), Caller: os.Getenv("TASK_CALLER"),
		EmulatorHost: os.Getenv("CLOUD_TASKS_EMULATOR_HOST"),
	}})
	check(err)

	// 1. and 2. Create the document, only if there is none, and the task that delivers it.
	_, err = worker.Submit(ctx, guard, worker.Kind{}, id, map[string]string{"text": text})
	if !errors.Is(err, worker.ErrOtherInput) { // the document keeps the input that it has
		check(err)
	}

	// 3. Watch the document until it is READY or FAILED.
	// It reads FIRESTORE_EMULATOR_HOST itself.
	database := cmp.Or(os.Getenv("FIRESTORE_DATABASE"), firestore.DefaultDatabaseID)
	db, err := firestore.NewClientWithDatabase(ctx, os.Getenv("GOOGLE_CLOUD_PROJECT"), database)
	check(err)
	for snapshots := db.Collection(collection).Doc(id).Snapshots(ctx); ; {
		snapshot, err := snapshots.Next()
		check(err)
		analysis := snapshot.Data()
		fmt.Println(analysis["status"])
		switch analysis["status"] {
		case "READY":
			check(json.NewEncoder(os.Stdout).Encode(analysis["result"]))
			return
		case "FAILED":
			check(json.NewEncoder(os.Stdout).Encode(analysis["error"]))
			os.Exit(1)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
