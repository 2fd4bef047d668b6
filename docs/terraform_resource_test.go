package docs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// resource is what a resource comes to: an object, a tuple of them with count, or
// an object of them with for_each.
func (m *terraform) resource(b *hclsyntax.Block) (cty.Value, error) {
	if count := b.Body.Attributes["count"]; count != nil {
		n, err := m.evaluate(count.Expr, nil)
		if err != nil {
			return cty.NilVal, err
		}
		if n.Equals(cty.Zero).True() {
			return cty.EmptyTupleVal, nil
		}
		one, err := m.instance(b, nil)
		return cty.TupleVal([]cty.Value{one}), err
	}
	each := b.Body.Attributes["for_each"]
	if each == nil {
		return m.instance(b, nil)
	}
	of, err := m.evaluate(each.Expr, nil)
	if err != nil {
		return cty.NilVal, err
	}
	all := map[string]cty.Value{}
	for key, value := range of.Elements() {
		if of.Type().IsSetType() {
			key = value
		}
		each := cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
		if all[key.AsString()], err = m.instance(b, map[string]cty.Value{"each": each}); err != nil {
			return cty.NilVal, err
		}
	}
	return cty.ObjectVal(all), nil
}

// instance is one of a resource, with what Google would add to it.
func (m *terraform) instance(b *hclsyntax.Block, extra map[string]cty.Value) (cty.Value, error) {
	fields, err := m.body(withoutMeta(b.Body), extra)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s: %w", strings.Join(b.Labels, "."), err)
	}
	fields["id"] = cty.StringVal("projects/my-project/" + b.Labels[1])
	if b.Labels[0] == "google_service_account" {
		email := fields["account_id"].AsString() + "@my-project.iam.gserviceaccount.com"
		fields["email"] = cty.StringVal(email)
		fields["member"] = cty.StringVal("serviceAccount:" + email)
		fields["name"] = cty.StringVal("projects/my-project/serviceAccounts/" + email)
	}
	return cty.ObjectVal(fields), nil
}

// meta are Terraform's own words in a resource.
var meta = []string{"count", "for_each", "depends_on", "lifecycle", "provider"}

// withoutMeta is a resource without them. Further in they are Google's: a container too
// may depend on another.
func withoutMeta(body *hclsyntax.Body) *hclsyntax.Body {
	rest := &hclsyntax.Body{Attributes: maps.Clone(body.Attributes)}
	maps.DeleteFunc(rest.Attributes, func(name string, _ *hclsyntax.Attribute) bool { return slices.Contains(meta, name) })
	for _, b := range body.Blocks {
		if !slices.Contains(meta, b.Type) {
			rest.Blocks = append(rest.Blocks, b)
		}
	}
	return rest
}

// body is what a block holds; blocks in it are lists, by their type.
func (m *terraform) body(body *hclsyntax.Body, extra map[string]cty.Value) (map[string]cty.Value, error) {
	fields, nested := map[string]cty.Value{}, map[string][]cty.Value{}
	for name, a := range body.Attributes {
		v, err := m.evaluate(a.Expr, extra)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fields[name] = v
	}
	for _, b := range body.Blocks {
		name, all, err := m.nested(b, extra)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		nested[name] = append(nested[name], all...)
	}
	for name, all := range nested {
		fields[name] = cty.TupleVal(all)
	}
	return fields, nil
}

// nested are the blocks that one, which may be dynamic, stands for.
func (m *terraform) nested(b *hclsyntax.Block, extra map[string]cty.Value) (name string, all []cty.Value, err error) {
	if b.Type != "dynamic" {
		fields, err := m.body(b.Body, extra)
		return b.Type, []cty.Value{cty.ObjectVal(fields)}, err
	}
	name = b.Labels[0]
	of, err := m.evaluate(b.Body.Attributes["for_each"].Expr, extra)
	if err != nil {
		return name, nil, err
	}
	for key, value := range of.Elements() {
		each := map[string]cty.Value{name: cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
		fields, err := m.body(b.Body.Blocks[0].Body, with(each, extra))
		if err != nil {
			return name, nil, err
		}
		all = append(all, cty.ObjectVal(fields))
	}
	return name, all, nil
}
