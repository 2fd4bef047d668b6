package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// of is the value of a resource or a local by its address, followed down a path of
// names and numbers; missing steps end the test.
func (m *terraform) of(t *testing.T, address string, path ...any) cty.Value {
	t.Helper()
	root, name, _ := strings.Cut(address, ".")
	_, v, err := m.refer(hcl.Traversal{hcl.TraverseRoot{Name: root}, hcl.TraverseAttr{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.GetAttr(step)
		case int:
			v = v.Index(cty.NumberIntVal(int64(step)))
		}
	}
	return v
}

// instances are all instances of the resources of a type, by address.
func (m *terraform) instances(t *testing.T, kind string) map[string]cty.Value {
	t.Helper()
	all := map[string]cty.Value{}
	for _, b := range m.blocks["resource"] {
		if b.Labels[0] != kind {
			continue
		}
		address := strings.Join(b.Labels, ".")
		v := m.of(t, address)
		if b.Body.Attributes["count"] == nil && b.Body.Attributes["for_each"] == nil {
			all[address] = v
			continue
		}
		for key, one := range v.Elements() {
			all[fmt.Sprintf("%s[%v]", address, key.GoString())] = one
		}
	}
	return all
}

// refusals are the messages of the validations and preconditions that do not hold.
func (m *terraform) refusals(t *testing.T) (messages []string) {
	t.Helper()
	var conditions []*hclsyntax.Block
	for _, kind := range []string{"variable", "resource"} {
		for _, b := range m.blocks[kind] {
			for _, in := range b.Body.Blocks {
				switch in.Type {
				case "validation":
					conditions = append(conditions, in)
				case "lifecycle":
					conditions = append(conditions, in.Body.Blocks...)
				}
			}
		}
	}
	for _, b := range conditions {
		holds, err := m.evaluate(b.Body.Attributes["condition"].Expr, nil)
		if err != nil {
			t.Fatal(err)
		}
		if holds.False() {
			message, _ := b.Body.Attributes["error_message"].Expr.Value(nil)
			messages = append(messages, message.AsString())
		}
	}
	return messages
}

func text(t *testing.T, v cty.Value) string {
	t.Helper()
	v, err := convert.Convert(v, cty.String)
	if err != nil || v.IsNull() {
		t.Fatalf("%#v is not a text: %v", v, err)
	}
	return v.AsString()
}

func readFolder(path string) (string, error) {
	data, err := os.ReadFile(path)
	return string(data), err
}

// dependsOn are the first two names of what a resource says it depends on.
func dependsOn(m *terraform, address string) (on []string) {
	for _, b := range m.blocks["resource"] {
		depends := b.Body.Attributes["depends_on"]
		if strings.Join(b.Labels, ".") != address || depends == nil {
			continue
		}
		for _, ref := range depends.Expr.Variables() {
			on = append(on, ref.RootName()+"."+ref[1].(hcl.TraverseAttr).Name)
		}
	}
	return on
}
