package alertstest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const config = `
global:
  scrape_interval: 1s
  scrape_timeout: 1s
  evaluation_interval: 1s
rule_files: [alerts.yaml]
scrape_configs:
- job_name: controllers
  static_configs:
  - targets: [%q]
`

// server is a Prometheus of this test alone, on the loopback address.
type server struct {
	url    string
	client *http.Client
	ended  chan struct{} // closed when the process is gone
}

// startPrometheus runs Prometheus with the rules and one target until the test
// ends, and returns when it serves.
func startPrometheus(ctx context.Context, t *testing.T, rules, target string) *server {
	t.Helper()
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("%v (Debian: apt-get install --no-install-recommends prometheus)", err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"prometheus.yaml": fmt.Sprintf(config, target), "alerts.yaml": rules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := freeAddress(t)
	logFile := filepath.Join(dir, "log")
	log, err := os.Create(logFile)
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(ctx)
	process := exec.CommandContext(ctx, binary,
		"--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address,
		"--log.level=warn")
	process.Dir = dir
	process.Stdout, process.Stderr = log, log
	process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
	process.WaitDelay = 10 * time.Second // then it is killed
	if err := process.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	s := &server{"http://" + address, &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}, make(chan struct{})}
	go func() {
		defer close(s.ended)
		_ = process.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-s.ended
		_ = log.Close()
		s.client.CloseIdleConnections()
		if content, err := os.ReadFile(logFile); err == nil && t.Failed() {
			t.Logf("the log of Prometheus:\n%s", content)
		}
	})
	eventually(ctx, t, 30*time.Second, "Prometheus serves", func() (bool, string) {
		select {
		case <-s.ended:
			t.Fatal("Prometheus ended at once")
		default:
		}
		resp, err := s.client.Get(s.url + "/-/ready")
		if err != nil {
			return false, err.Error()
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK, resp.Status
	})
	return s
}

// freeAddress is a loopback address that nobody listens on at this moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get asks the HTTP API and puts the field "data" of the answer into data.
func (s *server) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// value is that of a query whose result is one number; 0 if it finds nothing.
func (s *server) value(ctx context.Context, query string) (float64, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := s.get(ctx, "/api/v1/query?query="+url.QueryEscape(query), &data); err != nil || len(data.Result) == 0 {
		return 0, err
	}
	text, _ := data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}

// alert is one that is pending or firing.
type alert struct {
	Labels, Annotations map[string]string
	State               string
}

func (s *server) alerts(ctx context.Context) ([]alert, error) {
	var data struct{ Alerts []alert }
	err := s.get(ctx, "/api/v1/alerts", &data)
	return data.Alerts, err
}

// eventually waits until the condition holds, or fails the test with what the
// condition said last.
func eventually(ctx context.Context, t *testing.T, most time.Duration, what string, condition func() (bool, string)) {
	t.Helper()
	began := time.Now()
	for {
		ok, detail := condition()
		if ok {
			t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
			return
		}
		if time.Since(began) > most || ctx.Err() != nil {
			t.Fatalf("%s: not within %.0f s: %s", what, time.Since(began).Seconds(), detail)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
