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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	work, err := guard.Register(worker.Kind{})
	check(err)

	// It reads FIRESTORE_EMULATOR_HOST itself.
	database := cmp.Or(os.Getenv("FIRESTORE_DATABASE"), firestore.DefaultDatabaseID)
	db, err := firestore.NewClientWithDatabase(ctx, os.Getenv("GOOGLE_CLOUD_PROJECT"), database)
	check(err)
	order, doc := db.Collection("orders").Doc(id), db.Collection(collection).Doc(id)

	// 1. Create an order and its document in one transaction, unless they exist.
	fields, err := work.NewDocument(map[string]string{"text": text})
	check(err)
	err = db.RunTransaction(ctx, func(_ context.Context, tx *firestore.Transaction) error {
		return errors.Join(tx.Create(order, map[string]any{"text": text}), tx.Create(doc, fields))
	})
	if status.Code(err) != codes.AlreadyExists {
		check(err)
	}

	// 2. Book the delivery. Book tries for 15 s.
	if err := work.Book(ctx, id); err != nil {
		log.Print(err) // recovery books it within one TTL and a minute
	}

	// 3. Watch the document until it is READY or FAILED.
	for snapshots := doc.Snapshots(ctx); ; {
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
