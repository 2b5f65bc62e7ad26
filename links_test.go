package events_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

// ownPages is where GitHub shows the files of this repository.
var ownPages = regexp.MustCompile(`^https://github\.com/eventrecorder/events/(?:blob|tree)/(?:main|HEAD)/`)

func TestEveryLinkAndAnchorOfTheDocumentationLeadsSomewhere(t *testing.T) {
	tree := os.DirFS(".")
	links := linksOfTree(t, tree)
	if len(links) < 10 {
		t.Errorf("only %d links found", len(links))
	}
	for _, r := range readRules(t) {
		links = append(links, link{alertsFile, r.alert, r.runbook})
	}
	if bad := badLinks(tree, links); len(bad) > 0 {
		t.Errorf("%d bad links:\n%s", len(bad), strings.Join(bad, "\n"))
	}
}

// link is a link of a file, with the line or the name by which one finds it.
type link struct{ file, where, target string }

// linksOfTree returns the links of all Markdown files.
func linksOfTree(t *testing.T, tree fs.FS) (links []link) {
	t.Helper()
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !isMarkdown(name):
			return nil
		}
		content, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		for i, line := range prose(string(content)) {
			for _, target := range targets(line) {
				links = append(links, link{name, strconv.Itoa(i + 1), target})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return links
}

func isMarkdown(name string) bool { return strings.EqualFold(path.Ext(name), ".md") }

var (
	fence      = regexp.MustCompile("^ {0,3}(?:[-*+] +|[0-9]+[.)] +)?(```+|~~~+)")
	codeSpan   = regexp.MustCompile("(`+)[^`]+(`+)")
	inlineLink = regexp.MustCompile(`\]\(\s*(?:<([^>]*)>|((?:[^\s()]|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)`)
	definition = regexp.MustCompile(`^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)`)
	attribute  = regexp.MustCompile(`(?i)<[^>]*\b(?:href|src)\s*=\s*["']([^"']*)["']`)
)

// prose returns the lines of a Markdown file; those of blocks of code are empty.
func prose(content string) []string {
	lines := strings.Split(content, "\n")
	open := ""
	for i, line := range lines {
		m := fence.FindStringSubmatch(line)
		switch {
		case open == "" && m != nil:
			open = m[1]
		case open != "" && strings.HasPrefix(strings.TrimSpace(line), open):
			open = ""
		case open == "":
			continue
		}
		lines[i] = ""
	}
	return lines
}

// targets returns where a line of Markdown leads, whatever the form of the link.
func targets(line string) (found []string) {
	line = codeSpan.ReplaceAllString(line, "code")
	for _, m := range inlineLink.FindAllStringSubmatch(line, -1) {
		found = append(found, m[1]+m[2])
	}
	for _, form := range []*regexp.Regexp{definition, attribute} {
		for _, m := range form.FindAllStringSubmatch(line, -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// badLinks says of each link within the repository that leads nowhere, why.
func badLinks(tree fs.FS, links []link) (bad []string) {
	for _, l := range links {
		if fault := followLink(tree, l.file, l.target); fault != "" {
			bad = append(bad, fmt.Sprintf("%s:%s: %q: %s", l.file, l.where, l.target, fault))
		}
	}
	return bad
}

// followLink says what is wrong with a link of a file, if anything. What leads
// out of the repository is not looked at.
func followLink(tree fs.FS, file, target string) (fault string) {
	if own := ownPages.FindString(target); own != "" {
		target = "/" + strings.TrimPrefix(target, own)
	}
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return "not a URL"
	case u.Scheme != "" || u.Host != "":
		return ""
	case target == "":
		return "empty"
	}
	to := file
	switch {
	case strings.HasPrefix(u.Path, "/"): // of the repository, on GitHub
		to = path.Clean("." + u.Path)
	case u.Path != "":
		to = path.Join(path.Dir(file), u.Path)
	}
	if !fs.ValidPath(to) {
		return "leads out of the repository"
	}
	info, err := fs.Stat(tree, to)
	if err != nil {
		return "no such file"
	}
	if u.Fragment == "" {
		return ""
	}
	if info.IsDir() {
		to = path.Join(to, "README.md")
	}
	content, err := fs.ReadFile(tree, to)
	if err != nil {
		return "a directory without README.md has no anchors"
	}
	if !isMarkdown(to) {
		return followLines(string(content), u.Fragment)
	}
	if !slices.Contains(anchorsOf(string(content)), u.Fragment) {
		return "no such anchor"
	}
	return ""
}

// followLines says what is wrong with an anchor like L7 or L7-L9.
func followLines(content, anchor string) (fault string) {
	m := regexp.MustCompile(`^L(\d+)(?:-L(\d+))?$`).FindStringSubmatch(anchor)
	if m == nil {
		return "not a line"
	}
	for _, number := range m[1:] {
		if n, _ := strconv.Atoi(number); number != "" && (n < 1 || n > strings.Count(content, "\n")) {
			return "no such line"
		}
	}
	return ""
}

var (
	heading   = regexp.MustCompile(`^ {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$`)
	underline = regexp.MustCompile(`^ {0,3}(?:=+|-+)[ \t]*$`)
	linkText  = regexp.MustCompile(`!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])`)
	tag       = regexp.MustCompile(`<[^>]*>`)
	named     = regexp.MustCompile(`(?i)<\w[^>]*\b(?:id|name)\s*=\s*["']([^"']+)["']`)
)

// anchorsOf returns the anchors of a Markdown file as GitHub makes them: of each
// heading the words in lower case, without punctuation, joined with hyphens; one
// that is there already gets a number. HTML may name others.
func anchorsOf(content string) (anchors []string) {
	lines := prose(content)
	for i, line := range lines {
		for _, m := range named.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
			anchors = append(anchors, m[1])
		}
		text := ""
		if m := heading.FindStringSubmatch(line); m != nil {
			text = m[1]
		} else if i > 0 && underline.MatchString(line) && !strings.HasPrefix(lines[i-1], "|") {
			text = strings.TrimSpace(lines[i-1])
		}
		if text == "" {
			continue
		}
		anchor := anchorOf(text)
		for n, unique := 1, anchor; ; n++ {
			if !slices.Contains(anchors, unique) {
				anchors = append(anchors, unique)
				break
			}
			unique = fmt.Sprint(anchor, "-", n)
		}
	}
	return anchors
}

func anchorOf(heading string) string {
	heading = linkText.ReplaceAllString(heading, "$1")
	if !strings.Contains(heading, "`") {
		heading = tag.ReplaceAllString(heading, "")
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r), unicode.IsMark(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// The check itself, with what must be found and what must not.
func TestBadLinksAreFoundAllTogether(t *testing.T) {
	tree := fstest.MapFS{
		"docs/more.md":     {Data: []byte("# `a` grows\n# [A link](x) & more\nUnder lined\n===\n# Twice\n# Twice\n<a id=\"Named\"></a>\n```\n# In code\n```\n")},
		"docs/pic (1).svg": {Data: []byte("<svg/>\n")},
		"dir/README.md":    {Data: []byte("# Größe, in MiB: 3.5 #\n")},
		"empty/code.go":    {Data: []byte("package a\n\n// b\n")},
	}
	good := "[a](docs/more.md) [b](docs/more.md#a-grows) [c](docs/more.md#a-link--more) [d](docs/more.md#under-lined)\n" +
		"[e](docs/more.md#twice) [f](docs/more.md#twice-1 \"title\") [g](docs/more.md#Named) [![h](</docs/pic (1).svg>)](dir)\n" +
		"[i](dir#gr%C3%B6%C3%9Fe-in-mib-35) [j](./dir/../docs/) [k](empty/code.go#L1-L3) [l](#own) [m](https://example.com/#x)\n" +
		"`[code](nowhere)` [n](mailto:a@example.com) <a href=\"docs/more.md\">o</a> [p](docs/pic%20(1).svg)\n" +
		"[q](https://github.com/eventrecorder/events/blob/main/docs/more.md#twice)\n" +
		"# Own\n```sh\n[in](code)\n```\n[r]: docs/more.md#twice\n"
	bad := []string{
		"[a](docs/less.md)", "[b](docs/more.md#a_grows)", "[c](docs/more.md#in-code)", "[d](docs/more.md#twice-2)",
		"![e](docs/pic.svg)", "[f](../up.md)", "[g](#other)", "[h](empty#x)", "[i](empty/code.go#L4)", "[j](empty/code.go#main)",
		"[k]()", "<img src=\"no.png\">", "[l]: no.md", "[m](docs/more.md#named)", "[![n](docs/more.md)](no.md)", "[o](/docs/no.md)",
		"[p](https://github.com/eventrecorder/events/blob/main/docs/less.md)", "[q](docs/More.md)",
	}
	tree["README.md"] = &fstest.MapFile{Data: []byte(good)}
	if got := badLinks(tree, linksOfTree(t, tree)); len(got) != 1 || !strings.Contains(got[0], "docs/more.md:2") {
		t.Errorf("of the good links and the bad one of docs/more.md, these are bad:\n%s", strings.Join(got, "\n"))
	}
	if n := len(linksOfTree(t, tree)); n != 20 {
		t.Errorf("%d links found, want 20", n)
	}

	delete(tree, "README.md")
	tree["BAD.md"] = &fstest.MapFile{Data: []byte(strings.Join(bad, "\n"))}
	got := strings.Join(badLinks(tree, linksOfTree(t, tree)), "\n")
	for i, line := range bad {
		if !strings.Contains(got, fmt.Sprintf("BAD.md:%d: ", i+1)) {
			t.Errorf("not found to be bad: %s", line)
		}
	}
}
