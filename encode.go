package events

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

// appendJSON appends the payload of the event to dst, byte for byte what
// json.Marshal makes of n.event(controller, instance). It allocates nothing but
// a larger dst where dst is too small.
//
// Names and order of the fields are those of Event and of
// corev1.ObjectReference: keep them in sync. The metadata must be sorted by key.
func (n *notification) appendJSON(dst []byte, controller, instance string) []byte {
	dst = appendReference(append(dst, `{"involvedObject":`...), &n.involved)
	if n.related != nil {
		dst = appendReference(append(dst, `,"relatedObject":`...), n.related)
	}
	severity := severityInfo
	if n.warning {
		severity = severityError
	}
	dst = appendMember(dst, `,"severity":`, severity)
	dst = appendTime(append(dst, `,"timestamp":`...), n.recorded)
	dst = appendMember(dst, `,"message":`, n.message)
	dst = appendMember(dst, `,"reason":`, n.reason)
	dst = appendOptional(dst, `,"action":`, n.action)
	if len(n.metadata) > 0 {
		dst = appendMetadata(append(dst, `,"metadata":`...), n.metadata)
	}
	dst = appendMember(dst, `,"reportingController":`, controller)
	dst = appendOptional(dst, `,"reportingInstance":`, instance)
	return append(dst, '}')
}

// appendReference does not know which field comes first, for each of them is
// left out when it is empty. So each brings a comma in front, and the first
// comma becomes the brace.
func appendReference(dst []byte, ref *corev1.ObjectReference) []byte {
	start := len(dst)
	dst = appendOptional(dst, `,"kind":`, ref.Kind)
	dst = appendOptional(dst, `,"namespace":`, ref.Namespace)
	dst = appendOptional(dst, `,"name":`, ref.Name)
	dst = appendOptional(dst, `,"uid":`, string(ref.UID))
	dst = appendOptional(dst, `,"apiVersion":`, ref.APIVersion)
	dst = appendOptional(dst, `,"resourceVersion":`, ref.ResourceVersion)
	dst = appendOptional(dst, `,"fieldPath":`, ref.FieldPath)
	if len(dst) == start {
		return append(dst, "{}"...)
	}
	dst[start] = '{'
	return append(dst, '}')
}

// appendMetadata writes keys that are equal only after their invalid bytes were
// replaced one after the other, as json.Marshal does: both sort before that.
func appendMetadata(dst []byte, metadata []annotation) []byte {
	start := len(dst)
	for i := range metadata {
		dst = appendString(append(dst, ','), metadata[i].key)
		dst = appendString(append(dst, ':'), metadata[i].value)
	}
	dst[start] = '{'
	return append(dst, '}')
}

// appendTime is metav1.Time.MarshalJSON, which cannot append. Neither refuses
// a year of more than four digits or less than zero, as time.Time would.
func appendTime(dst []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(dst, "null"...)
	}
	dst = append(dst, '"')
	dst = t.UTC().AppendFormat(dst, time.RFC3339)
	return append(dst, '"')
}

// appendMember appends a name, which brings its comma, quotes and colon, and a value.
func appendMember(dst []byte, name, value string) []byte {
	return appendString(append(dst, name...), value)
}

// appendOptional is appendMember for a field with the option omitempty.
func appendOptional(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return appendMember(dst, name, value)
}

// asked is what encoding/json writes for s between the quotes. The escapes are
// asked for, once, since they change: Go 1.22 has a shorter one for \b, and
// Go 1.27 writes U+FFFD for an invalid byte, where it was an escape before.
func asked(s string) string {
	quoted, _ := json.Marshal(s) // no string is an error
	return string(quoted[1 : len(quoted)-1])
}

var (
	escapeOfInvalid   = asked("\xff")
	escapesOfLineEnds = [...]string{asked("\u2028"), asked("\u2029")}

	// escapes is by ASCII character, and asIs says by byte which of them stay
	// as they are: the bytes that appendString may pass over.
	escapes, asIs = func() (escapes [utf8.RuneSelf]string, asIs [256]bool) {
		for b := range escapes {
			escapes[b] = asked(string(rune(b)))
			asIs[b] = escapes[b] == string(rune(b))
		}
		return escapes, asIs
	}()
)

// appendString copies all between two escapes at once: most strings have none.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	copied := 0
	for i := 0; i < len(s); {
		if asIs[s[i]] {
			i++
			continue
		}
		escape, size := escapeAt(s[i:])
		if escape != "" {
			dst = append(append(dst, s[copied:i]...), escape...)
			copied = i + size
		}
		i += size
	}
	return append(append(dst, s[copied:]...), '"')
}

// escapeAt returns the escape of the first character of s, if it has one, and
// how many bytes the character has.
func escapeAt(s string) (escape string, size int) {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r < utf8.RuneSelf:
		return escapes[r], size
	case r == '\u2028' || r == '\u2029':
		return escapesOfLineEnds[r-'\u2028'], size
	case size == 1: // no ASCII, so an invalid byte; U+FFFD itself has size 3
		return escapeOfInvalid, size
	}
	return "", size
}
