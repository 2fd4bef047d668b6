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

	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/iso8601"
	"taskguard/locks/operator"
)

// text returns a text in the user's language.
func (c *call) text(japanese, english string) string {
	if c.english {
		return english
	}
	return japanese
}

// name returns how a text names an operator: in English with the ID, as names are Japanese.
func (c *call) name(o operator.Operator) string {
	name := printable.Line(o.Name)
	if c.english && o.Name != o.ID {
		name = printable.Line(o.ID) + " (" + name + ")"
	}
	return name
}

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
	text := c.text("利用可能なオペレータ: ", "available operators: ") + strings.Join(ids, ", ")
	if len(ids) == 0 {
		text = c.text("利用可能なオペレータはありません", "no operator is available")
	}
	return answer{text, map[string]any{"operators": free}}, err
}

func assign(ctx context.Context, c *call, id string) (answer, error) {
	a, err := c.pool.Assign(ctx, id)
	return answer{c.text(c.name(a.Operator)+"を割り当てました", "assigned "+c.name(a.Operator)), a}, err
}

func release(ctx context.Context, c *call, _ string) (answer, error) {
	was, ok, err := c.pool.Release(ctx)
	if !ok {
		return answer{c.text("割り当てられたオペレータはありません", "no operator is assigned"), map[string]any{"wasAssigned": false}}, err
	}
	return answer{c.text(c.name(was)+"を解放しました", "released "+c.name(was)), map[string]any{"wasAssigned": true, "operator": was}}, err
}

func status(ctx context.Context, c *call, _ string) (answer, error) {
	s, err := c.pool.Status(ctx)
	if err != nil {
		return answer{}, err
	}
	document := map[string]any{"session": c.session, "operator": nil, "operators": s.Operators}
	var b strings.Builder
	if s.Operator.ID == "" {
		b.WriteString(c.text("オペレータは割り当てられていません\n", "no operator is assigned\n"))
	} else {
		document["operator"], document["expiresAt"] = s.Operator, iso8601.Format(s.ExpiresAt)
		fmt.Fprintf(&b, c.text("現在のオペレータ: %s (%s、%s まで)\n", "current operator: %s (%s, until %s)\n"), printable.Line(s.Operator.Name), printable.Line(s.Operator.ID), s.ExpiresAt.Local().Format(time.DateTime))
	}
	labels := map[string]string{
		operator.Available: c.text("利用可能", "available"), operator.Own: c.text("使用中", "in use"),
		operator.Busy: c.text("他セッションで使用中", "in use by another session"),
	}
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
		err = errors.New(c.text("オペレータは割り当てられていません", "no operator is assigned"))
	}
	return answer{c.text(c.name(own)+"の期限を更新しました", "extended "+c.name(own)), map[string]any{"refreshed": true, "operator": own}}, err
}

func clearAll(ctx context.Context, c *call, _ string) (answer, error) {
	n, err := c.pool.Clear(ctx)
	return answer{fmt.Sprintf(c.text("すべての割り当てを解除しました (%d件)", "cleared all assignments (%d)"), n), map[string]any{"cleared": n}}, err
}

// message returns the text of an error for users (O2).
func (c *call) message(err error) string {
	var busy *operator.BusyError
	var unknown *operator.UnknownError
	switch {
	case errors.As(err, &busy):
		return c.text(c.name(busy.Operator)+"は他のセッションで使用中です", c.name(busy.Operator)+" is in use by another session")
	case errors.As(err, &unknown):
		return c.text(printable.Line(unknown.ID)+"というオペレータはいません", "unknown operator: "+printable.Line(unknown.ID))
	case errors.Is(err, operator.ErrNoneFree):
		return c.text("利用可能なオペレータがありません", "no operator is available")
	case errors.Is(err, fs.ErrPermission):
		return c.text("状態ファイルを読み書きする権限がありません: ", "no permission for the state file: ") + err.Error()
	case errors.Is(err, lease.ErrUnavailable):
		return c.text("状態ファイルを更新できませんでした: ", "the state file was not updated: ") + err.Error()
	}
	return err.Error()
}
