package firestore_test

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"

	client "cloud.google.com/go/firestore"
	"cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
)

var listCases = []conformanceCase{
	{"ListsDocumentsAndMissingParents", func(t *testing.T, r *rig) {
		for _, name := range []string{"p/b", "p/a", "p/gone/sub/x", "q/z"} {
			must[*client.WriteResult](t)(r.client.Doc(name).Create(r.ctx, object{"n": 1}))
		}
		refs := must[[]*client.DocumentRef](t)(r.client.Collection("p").DocumentRefs(r.ctx).GetAll())
		var ids []string
		for _, ref := range refs {
			ids = append(ids, ref.ID)
		}
		if got, want := strings.Join(ids, " "), "a b gone"; got != want {
			t.Errorf("listed %q, want %q", got, want)
		}
	}},
	{"PagesFollowEachOther", func(t *testing.T, r *rig) {
		for i := range 5 {
			must[*client.WriteResult](t)(r.client.Doc(fmt.Sprintf("p/%d", i)).Create(r.ctx, object{}))
		}
		request := &firestorepb.ListDocumentsRequest{Parent: r.database + "/documents", CollectionId: "p", PageSize: 2}
		var ids []string
		for {
			page := must[*firestorepb.ListDocumentsResponse](t)(r.raw.ListDocuments(r.ctx, request))
			for _, d := range page.Documents {
				ids = append(ids, path.Base(d.Name))
			}
			if request.PageToken = page.NextPageToken; request.PageToken == "" {
				break
			}
		}
		if got, want := strings.Join(ids, " "), "0 1 2 3 4"; got != want {
			t.Errorf("pages hold %q, want %q", got, want)
		}
	}},
	{"ListsCollections", func(t *testing.T, r *rig) {
		for _, name := range []string{"p/b", "q/a/sub/x", "q/a/other/x/deep/y"} {
			must[*client.WriteResult](t)(r.client.Doc(name).Create(r.ctx, object{}))
		}
		for _, c := range []struct {
			of   *client.CollectionIterator
			want string
		}{{r.client.Collections(r.ctx), "p q"}, {r.client.Doc("q/a").Collections(r.ctx), "other sub"}} {
			var ids []string
			for {
				ref, err := c.of.Next()
				if errors.Is(err, iterator.Done) {
					break
				}
				ids = append(ids, must[*client.CollectionRef](t)(ref, err).ID)
			}
			if got := strings.Join(ids, " "); got != c.want {
				t.Errorf("collections %q, want %q", got, c.want)
			}
		}
	}},
	{"DocumentCalls", func(t *testing.T, r *rig) {
		root := r.database + "/documents"
		created := must[*firestorepb.Document](t)(r.raw.CreateDocument(r.ctx, &firestorepb.CreateDocumentRequest{
			Parent: root, CollectionId: "p", DocumentId: "d", Document: &firestorepb.Document{Fields: fields{"n": integerValue(1)}},
		}))
		_, err := r.raw.CreateDocument(r.ctx, &firestorepb.CreateDocumentRequest{Parent: root, CollectionId: "p", DocumentId: "d"})
		wantCode(t, err, codes.AlreadyExists)
		updated := must[*firestorepb.Document](t)(r.raw.UpdateDocument(r.ctx, &firestorepb.UpdateDocumentRequest{
			Document:   &firestorepb.Document{Name: created.Name, Fields: fields{"m": integerValue(2)}},
			UpdateMask: &firestorepb.DocumentMask{FieldPaths: []string{"m"}},
		}))
		if len(updated.Fields) != 2 {
			t.Errorf("updated fields %v, want n and m", updated.Fields)
		}
		if _, err = r.raw.DeleteDocument(r.ctx, &firestorepb.DeleteDocumentRequest{Name: created.Name}); err != nil {
			t.Errorf("delete: %v", err)
		}
		wantData(t, r.get(t, r.client.Doc("p/d")), nil)
	}},
	{"BatchWriteReportsEachWrite", func(t *testing.T, r *rig) {
		existing, fresh := r.doc(t, object{"n": 1}), r.doc(t, nil)
		refused := put(existing, 2)
		refused.CurrentDocument = &firestorepb.Precondition{ConditionType: &firestorepb.Precondition_Exists{}}
		answer := must[*firestorepb.BatchWriteResponse](t)(r.raw.BatchWrite(r.ctx, &firestorepb.BatchWriteRequest{
			Database: r.database, Writes: []*firestorepb.Write{refused, put(fresh, 5)},
		}))
		if answer.Status[0].GetCode() != int32(codes.AlreadyExists) || answer.Status[1].GetCode() != 0 {
			t.Errorf("statuses %v, want AlreadyExists and OK", answer.Status)
		}
		wantData(t, r.get(t, fresh), object{"n": int64(5)})
	}},
}
