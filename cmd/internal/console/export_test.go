package console

import "html/template"

// Break leaves only the template of an error's page.
func (s *Server) Break() {
	s.html = template.Must(template.New("").Parse(`{{define "problem"}}{{.Message}}{{end}}`))
}
