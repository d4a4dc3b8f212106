// Command curl is as much of curl as the suite's pods use: one page over HTTP or HTTPS, its body or what -w asks for
// on standard output, and curl's exit codes for what they are told apart by.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// Exit codes of curl(1).
const (
	usage     = 2
	noHost    = 6
	noConnect = 7
	httpError = 22
	noWrite   = 23
	timeOut   = 28
)

// What the command line says.
type request struct {
	url, method, data, output, write string
	headers                          []string
	limit, connect                   time.Duration
	insecure, head, include, fail    bool
}

// Options with a value that is nothing here.
var ignored = map[string]bool{"--interface": true, "--retry": true, "--retry-delay": true, "-A": true}

func main() {
	r, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "curl:", err)
		os.Exit(usage)
	}
	if code, err := r.run(); err != nil {
		fmt.Fprintln(os.Stderr, "curl:", err)
		os.Exit(code)
	}
}

func parse(args []string) (request, error) {
	r := request{limit: 5 * time.Minute, connect: time.Minute}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if !strings.HasPrefix(arg, "-") {
			r.url = arg
			continue
		}
		names := []string{arg}
		if !strings.HasPrefix(arg, "--") {
			names = strings.Split(arg[1:], "")
		}
		for i, name := range names {
			if len(name) == 1 {
				name = "-" + name
			}
			value := func() (string, error) {
				// `-XGET`: the rest of the word is the value.
				if rest := strings.Join(names[i+1:], ""); rest != "" {
					return rest, nil
				}
				if len(args) == 0 {
					return "", fmt.Errorf("option %s: requires parameter", name)
				}
				next := args[0]
				args = args[1:]
				return next, nil
			}
			takes, err := r.set(name, value)
			if err != nil {
				return r, err
			}
			if takes {
				break
			}
		}
	}
	if r.url == "" {
		return r, errors.New("no URL")
	}
	if !strings.Contains(r.url, "://") {
		r.url = "http://" + r.url
	}
	return r, nil
}

// set takes an option; answers whether it has a value.
func (r *request) set(name string, value func() (string, error)) (bool, error) {
	switch name {
	case "-k", "--insecure":
		r.insecure = true
	case "-I", "--head":
		r.head = true
	case "-i", "--include":
		r.include = true
	case "-f", "--fail":
		r.fail = true
	case "-s", "-S", "-q", "-g", "-v", "-L", "--silent", "--show-error", "--globoff":
	default:
		text, err := value()
		if err != nil {
			return true, err
		}
		return true, r.give(name, text)
	}
	return false, nil
}

func (r *request) give(name, text string) (err error) {
	switch name {
	case "-m", "--max-time":
		r.limit, err = time.ParseDuration(text + "s")
	case "--connect-timeout":
		r.connect, err = time.ParseDuration(text + "s")
	case "-d", "--data":
		r.data = text
	case "-o", "--output":
		r.output = text
	case "-w", "--write-out":
		r.write = text
	case "-X", "--request":
		r.method = text
	case "-H", "--header":
		r.headers = append(r.headers, text)
	default:
		if !ignored[name] {
			err = fmt.Errorf("option %s is unknown", name)
		}
	}
	return err
}

func (r *request) run() (int, error) {
	method := r.method
	switch {
	case method != "":
	case r.head:
		method = http.MethodHead
	case r.data != "":
		method = http.MethodPost
	default:
		method = http.MethodGet
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, method, r.url, strings.NewReader(r.data))
	if err != nil {
		return usage, err
	}
	if r.data != "" {
		ask.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, header := range r.headers {
		if name, value, ok := strings.Cut(header, ":"); ok {
			ask.Header.Set(name, strings.TrimSpace(value))
			if strings.EqualFold(name, "host") {
				ask.Host = strings.TrimSpace(value)
			}
		}
	}
	transport := http.Transport{
		DialContext:     (&net.Dialer{Timeout: r.connect}).DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: r.insecure},
	}
	answer, err := transport.RoundTrip(ask)
	if err != nil {
		return exitCode(err), err
	}
	defer answer.Body.Close()
	out := os.Stdout
	if r.output != "" {
		if out, err = os.OpenFile(r.output, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644); err != nil {
			return noWrite, err
		}
		defer out.Close()
	}
	if r.fail && answer.StatusCode >= 400 {
		return httpError, fmt.Errorf("the requested URL returned error: %s", answer.Status)
	}
	if r.head || r.include {
		fmt.Fprintf(out, "%s %s\r\n", answer.Proto, answer.Status)
		_ = answer.Header.Write(out)
		fmt.Fprint(out, "\r\n")
	}
	if !r.head {
		if _, err := io.Copy(out, answer.Body); err != nil {
			return exitCode(err), err
		}
	}
	code := fmt.Sprint(answer.StatusCode)
	fmt.Print(strings.NewReplacer("%{http_code}", code, "%{response_code}", code, `\n`, "\n").Replace(r.write))
	return 0, nil
}

func exitCode(err error) int {
	var name *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &name):
		return noHost
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return timeOut
	default:
		return noConnect
	}
}
