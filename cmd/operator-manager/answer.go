package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/lease/operatorpool"
	"taskguard/worker/printable"
)

// answer is a command's output: text for people, or document as JSON.
type answer struct {
	text     string
	document any
}

func (a answer) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return e.Encode(a.document)
	}
	_, err := io.WriteString(w, a.text+"\n")
	return err
}

func available(ctx context.Context, c *call, _ string) (answer, error) {
	free, err := c.pool.Available(ctx)
	ids := make([]string, len(free))
	for i, o := range free {
		ids[i] = printable.Line(o.ID)
	}
	text := "利用可能なオペレータ: " + strings.Join(ids, ", ")
	if len(ids) == 0 {
		text = "利用可能なオペレータはありません"
	}
	return answer{text, map[string]any{"operators": free}}, err
}

func assign(ctx context.Context, c *call, id string) (answer, error) {
	a, err := c.pool.Assign(ctx, id)
	return answer{printable.Line(a.Operator.Name) + "を割り当てました", a}, err
}

func release(ctx context.Context, c *call, _ string) (answer, error) {
	was, ok, err := c.pool.Release(ctx)
	if !ok {
		return answer{"割り当てられたオペレータはありません", map[string]any{"wasAssigned": false}}, err
	}
	return answer{printable.Line(was.Name) + "を解放しました", map[string]any{"wasAssigned": true, "operator": was}}, err
}

func status(ctx context.Context, c *call, _ string) (answer, error) {
	s, err := c.pool.Status(ctx)
	if err != nil {
		return answer{}, err
	}
	document := map[string]any{"session": c.session, "operator": nil, "operators": s.Operators}
	var b strings.Builder
	if s.Operator.ID == "" {
		b.WriteString("オペレータは割り当てられていません\n")
	} else {
		document["operator"], document["expiresAt"] = s.Operator, iso8601.Format(s.ExpiresAt)
		fmt.Fprintf(&b, "現在のオペレータ: %s (%s、%s まで)\n", printable.Line(s.Operator.Name), printable.Line(s.Operator.ID), s.ExpiresAt.Local().Format(time.DateTime))
	}
	labels := map[string]string{operatorpool.Available: "利用可能", operatorpool.Own: "使用中", operatorpool.Busy: "他セッションで使用中"}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, o := range s.Operators {
		_, _ = fmt.Fprintf(t, "\n%s\t%s\t%s", printable.Line(o.ID), labels[o.State], printable.Line(o.Name)) // to a Builder
	}
	err = t.Flush()
	return answer{b.String(), document}, err
}

func refresh(ctx context.Context, c *call, _ string) (answer, error) {
	own, ok, err := c.pool.Refresh(ctx)
	if err == nil && !ok {
		err = errors.New("オペレータは割り当てられていません")
	}
	return answer{printable.Line(own.Name) + "の期限を更新しました", map[string]any{"refreshed": true, "operator": own}}, err
}

func clearAll(ctx context.Context, c *call, _ string) (answer, error) {
	n, err := c.pool.Clear(ctx)
	return answer{fmt.Sprintf("すべての割り当てを解除しました (%d件)", n), map[string]any{"cleared": n}}, err
}

// message returns the text of an error for users (O2).
func message(err error) string {
	var busy *operatorpool.BusyError
	var unknown *operatorpool.UnknownError
	switch {
	case errors.As(err, &busy):
		return printable.Line(busy.Operator.Name) + "は他のセッションで使用中です"
	case errors.As(err, &unknown):
		return printable.Line(unknown.ID) + "というオペレータはいません"
	case errors.Is(err, operatorpool.ErrNoneFree):
		return "利用可能なオペレータがありません"
	case errors.Is(err, fs.ErrPermission):
		return "状態ファイルを読み書きする権限がありません: " + err.Error()
	case errors.Is(err, lease.ErrUnavailable):
		return "状態ファイルを更新できませんでした: " + err.Error()
	}
	return err.Error()
}
