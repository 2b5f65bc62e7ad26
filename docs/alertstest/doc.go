// Package alertstest runs the alerts of docs/alerts.yaml in a real Prometheus,
// against recorders in trouble. It has tests only; `make alerts` runs them.
//
// It complements the unit tests of the rules, which promtool runs on series that
// were written down (see TestOperationsAlertsFireWhenTheyShouldAndNotElse). Here
// Prometheus scrapes a process, evaluates the rules, and is asked over its API
// which alerts are pending and which are firing.
package alertstest
