package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"taskguard/cmd/internal/printable"
)

// analyzerTimeout is how long an analyzer may take to answer local's first request.
const analyzerTimeout = 3 * time.Second

// warnOfAnalyzer warns if ANALYZER is a URL at which nothing answers: each run would fail for now, and its user
// would wait. It asks for the root of the server, not for the analyzer's own path, which may begin work. Any answer
// will do, since an analyzer need not know this path.
func (l *local) warnOfAnalyzer(ctx context.Context) {
	spec := l.c.Value("ANALYZER")
	if !strings.HasPrefix(spec, "http://") && !strings.HasPrefix(spec, "https://") {
		return
	}
	u, err := url.Parse(spec)
	if err != nil { // configureWorkers has refused it
		return
	}
	server := u.Scheme + "://" + u.Host // the rest may contain a key
	err = head(ctx, server+"/")
	if err == nil || ctx.Err() != nil {
		return
	}

	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v", analyzerTimeout)
	}
	l.c.Notice("ANALYZER: nothing answers at %s (%s): start your analyzer there, or correct the address. "+
		"Until it answers, each run fails, and is tried again.", printable.Line(server), printable.Line(err.Error()))
}

// head returns an error if the server of address gives no HTTP answer within analyzerTimeout.
func head(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, analyzerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, address, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return cmp.Or(errors.Unwrap(err), err) // without the URL
	}
	return response.Body.Close()
}
