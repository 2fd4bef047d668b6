package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
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
	if c.english && o.Name != o.ID {
		return o.ID + " (" + o.Name + ")"
	}
	return o.Name
}

// answer is a command's output: text for people, or document as JSON.
type answer struct {
	text     string
	document any
}

func (a answer) format(asJSON bool) string {
	if !asJSON {
		return printable.Lines(a.text) + "\n"
	}
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(a.document) // strings alone
	return out.String()
}

func available(ctx context.Context, c *call, _ string) (answer, error) {
	free, err := c.pool.Available(ctx)
	ids := make([]string, len(free))
	for i, o := range free {
		ids[i] = o.ID
	}

	text := c.text("利用可能なオペレータ: ", "available operators: ") + strings.Join(ids, ", ")
	if len(ids) == 0 {
		text = c.text("利用可能なオペレータはありません", "no operator is available")
	}
	return answer{text, map[string]any{"operators": free}}, err
}

func assign(ctx context.Context, c *call, id string) (answer, error) {
	a, err := c.pool.Assign(ctx, id)
	name := c.name(a.Operator)
	return answer{c.text(name+"を割り当てました", "assigned "+name), a}, err
}

func release(ctx context.Context, c *call, _ string) (answer, error) {
	freed, err := c.pool.Release(ctx)
	document := map[string]any{"wasAssigned": freed.ID != ""}
	text := c.text("割り当てられたオペレータはありません", "no operator is assigned")
	if freed.ID != "" {
		name := c.name(freed)
		document["operator"], text = freed, c.text(name+"を解放しました", "released "+name)
	}
	return answer{text, document}, err
}

func status(ctx context.Context, c *call, _ string) (answer, error) {
	s, err := c.pool.Status(ctx)
	if err != nil {
		return answer{}, err
	}

	document := map[string]any{"session": c.session, "operator": nil, "operators": s.Operators}
	text := c.text("オペレータは割り当てられていません\n", "no operator is assigned\n")
	if s.Operator.ID != "" {
		document["operator"], document["expiresAt"] = s.Operator, iso8601.Format(s.ExpiresAt)
		format := c.text("現在のオペレータ: %s (%s、%s まで)\n", "current operator: %s (%s, until %s)\n")
		text = fmt.Sprintf(format, s.Operator.Name, s.Operator.ID, s.ExpiresAt.Local().Format(time.DateTime))
	}

	labels := map[string]string{
		operator.Available: c.text("利用可能", "available"), operator.Own: c.text("使用中", "in use"),
		operator.Busy: c.text("他セッションで使用中", "in use by another session"),
	}
	var table strings.Builder // its errors are nil
	columns := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, o := range s.Operators {
		_, _ = fmt.Fprintf(columns, "\n%s\t%s\t%s", o.ID, labels[o.State], o.Name)
	}
	_ = columns.Flush()
	return answer{text + table.String(), document}, nil
}

func refresh(ctx context.Context, c *call, _ string) (answer, error) {
	s, err := c.pool.Status(ctx) // every use extends the reservation
	if err == nil && s.Operator.ID == "" {
		err = said(c.text("オペレータは割り当てられていません", "no operator is assigned"))
	}
	name := c.name(s.Operator)
	text := c.text(name+"の期限を更新しました", "extended "+name)
	return answer{text, map[string]any{"refreshed": true, "operator": s.Operator}}, err
}

func clearAll(ctx context.Context, c *call, _ string) (answer, error) {
	n, err := c.pool.Clear(ctx)
	text := fmt.Sprintf(c.text("すべての割り当てを解除しました (%d件)", "cleared all assignments (%d)"), n)
	return answer{text, map[string]any{"cleared": n}}, err
}

// said is an error whose text is in the user's language.
type said string

func (e said) Error() string { return string(e) }

// message returns the text of an error for users.
func (c *call) message(err error) string {
	var busy *operator.BusyError
	var unknown *operator.UnknownError
	var lock *operator.LockError
	switch {
	case errors.As(err, new(said)), errors.As(err, new(usageError)):
		return err.Error()
	case errors.As(err, &busy):
		name := c.name(busy.Operator)
		return c.text(name+"は他のセッションで使用中です", name+" is in use by another session")
	case errors.As(err, &unknown):
		return c.text(unknown.ID+"というオペレータはいません", "unknown operator: "+unknown.ID)
	case errors.As(err, &lock):
		return fmt.Sprintf(c.text("ロック %s を取得できません: %s。使っているプログラムがなければ削除してください",
			"the lock %s cannot be taken: %s. Remove it if no program uses it"), lock.Path, c.reason(lock.Err, "使用できません"))
	case errors.Is(err, operator.ErrNoneFree):
		return c.text("利用可能なオペレータがありません", "no operator is available")
	}
	return c.text("状態ファイル "+c.state+" を更新できませんでした: ", "the state file was not updated: ") +
		c.reason(err, "詳細は LC_ALL=en を付けて実行すると表示されます")
}

// reasons are the Japanese texts of errors of files, in English the errors' own.
var reasons = []struct {
	err      error
	japanese string
}{
	{fs.ErrPermission, "権限がありません"},
	{fs.ErrNotExist, "ファイルまたはディレクトリがありません"},
	{syscall.ENOSPC, "ディスクに空きがありません"},
	{syscall.EROFS, "読み取り専用です"},
	{syscall.ELOOP, "シンボリックリンクは使用できません"},
	{syscall.ENOTDIR, "ディレクトリではありません"},
	{lease.ErrUnavailable, "2秒以内に終わりませんでした。他のプログラムが使用中かもしれません"},
}

// reason returns the text of err: in Japanese otherwise, if reasons has none.
func (c *call) reason(err error, otherwise string) string {
	if c.english {
		return err.Error()
	}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.japanese
		}
	}
	return otherwise
}
