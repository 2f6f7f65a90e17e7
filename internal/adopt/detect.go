package adopt

import (
	"slices"
	"strings"
)

// The layouts that are found by their columns.
const (
	LayoutStatus    = "status"
	LayoutPublished = "published"
	LayoutDebezium  = "debezium"
	LayoutWatermill = "watermill"
	LayoutForwarder = "watermill-forwarder"
	LayoutRiver     = "river"
	LayoutPgBoss    = "pg-boss"
	LayoutCustom    = "custom"
)

// Layouts lists them.
func Layouts() []string {
	return []string{LayoutStatus, LayoutPublished, LayoutDebezium, LayoutWatermill, LayoutForwarder, LayoutRiver, LayoutPgBoss}
}

// plain is a name in lower case without what separates words.
func plain(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// find returns the first column with one of the plain names and one of the classes; no class: any.
func (t *Table) find(names string, classes ...Class) (Column, bool) {
	for _, name := range strings.Fields(names) {
		for _, c := range t.Columns {
			if plain(c.Name) == name && (len(classes) == 0 || slices.Contains(classes, c.Class)) {
				return c, true
			}
		}
	}
	return Column{}, false
}

func (t *Table) has(names string) (missing []string) {
	for _, name := range strings.Fields(names) {
		if _, ok := t.find(name); !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// from returns the first column with one of the names as a source, or the zero Source.
func (t *Table) from(names string, classes ...Class) Source {
	c, _ := t.find(names, classes...)
	return Source{Column: c.Name}
}

// Names of columns that mean the same.
const (
	idNames      = "id eventid messageid uuid outboxid"
	topicNames   = "topic destination channel exchange queue topicname streamname"
	keyNames     = "key partitionkey messagekey aggregateid streamid orderingkey routingkey entityid"
	typeNames    = "type eventtype messagetype eventname kind name"
	payloadNames = "payload data body content eventdata messagebody message"
	headerNames  = "headers metadata attributes"
	createdNames = "createdat createdon created occurredat occurredon occurredonutc insertedat timestamp"
	dueNames     = "notbefore visibleat availableat scheduledat deliverafter processafter runat"
	statusNames  = "status state"
	lockNames    = "lockeduntil lockexpiresat lockedtill"
	sentNames    = "sentat publishedat processedat deliveredat dispatchedat completedat processedon processedonutc processeddate"
	attemptNames = "attemptcount attempts retrycount retries tries"
	errorNames   = "lasterror lasterrormessage error errormessage failurereason"
	flagNames    = "published ispublished sent issent processed isprocessed dispatched isdispatched delivered"
)

// common maps what every layout may have.
func (t *Table) common(layout string) Mapping {
	m := Mapping{
		Layout: layout, Order: t.order(),
		Topic: t.from(topicNames, Text, Enum), Key: t.from(keyNames), Type: t.from(typeNames, Text, Enum), Payload: t.from(payloadNames, Text, JSON, Bytes),
		ContentType: t.from("contenttype mimetype", Text), Headers: t.from(headerNames, JSON), Version: t.from("aggregateversion streamseq streamversion", Number),
		CreatedAt: t.from(createdNames, Time, LocalTime), NotBefore: t.from(dueNames, Time, LocalTime),
	}
	if c, ok := t.find(idNames, UUID, Text, Bytes); ok {
		m.ID.Column = c.Name
	}
	return m
}

// order is by what orders the rows: the column that the database numbers, else the time and the key.
func (t *Table) order() []string {
	for _, c := range t.Columns {
		if c.Numbered {
			return []string{c.Name}
		}
	}
	var order []string
	if c, ok := t.find(createdNames, Time, LocalTime); ok {
		order = append(order, c.Name)
	}
	for _, k := range t.Key {
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
	}
	return order
}

// Propose returns the mapping of a layout; "" is found by the columns. found returns the values of a column
// that rows have now.
func Propose(t *Table, layout string, found func(column string) ([]string, error)) (Mapping, error) {
	if layout == "" {
		layout = t.layout()
	}
	switch layout {
	case LayoutRiver:
		return t.river()
	case LayoutPgBoss:
		return t.pgboss()
	case LayoutWatermill:
		return t.watermill()
	case LayoutForwarder:
		return t.forwarder()
	case LayoutDebezium:
		return t.debezium()
	case LayoutStatus:
		return t.status(found)
	case LayoutPublished:
		return t.published()
	case "":
		m := t.common(LayoutCustom)
		m.State = &State{} // to be filled in, or to be removed
		return m, t.unknown()
	}
	return Mapping{}, t.refuse(UnknownLayout, "use "+strings.Join(Layouts(), ", ")+", or --mapping FILE", "there is no layout %q", layout)
}

func (t *Table) layout() string {
	switch {
	case t.has("kind args state queue maxattempts finalizedat scheduledat") == nil:
		return LayoutRiver
	case t.has("name data state retrylimit startafter") == nil:
		return LayoutPgBoss
	case t.has("offset uuid payload metadata") == nil:
		if strings.Contains(t.Name, "forwarder") {
			return LayoutForwarder
		}
		return LayoutWatermill
	}
	if _, ok := t.find(payloadNames, Text, JSON, Bytes); !ok {
		return ""
	}
	if _, ok := t.find(statusNames, Text, Enum, Number); ok {
		return LayoutStatus
	}
	if _, _, ok := t.flag(); ok {
		return LayoutPublished
	}
	if t.has("aggregatetype aggregateid type payload") == nil {
		return LayoutDebezium
	}
	return ""
}

// unknown says which columns each layout misses.
func (t *Table) unknown() error {
	miss := func(of string) string {
		if missing := t.has(of); len(missing) > 0 {
			return strings.Join(missing, ", ")
		}
		return "nothing"
	}
	payload := ""
	if _, ok := t.find(payloadNames, Text, JSON, Bytes); !ok {
		payload = "payload, "
	}
	return t.refuse(UnknownLayout, "write a mapping: `postrider adopt "+t.Full()+" --print-mapping` prints one to start from, and --mapping FILE takes it",
		"the layout is unknown: for %s the columns %sstatus are missing, for %s %spublished or published_at, for %s %s, for %s %s",
		LayoutStatus, payload, LayoutPublished, payload, LayoutDebezium, miss("aggregatetype aggregateid type payload"), LayoutWatermill, miss("offset uuid payload metadata"))
}

// needs is the refusal of a layout that was named and whose columns are missing.
func (t *Table) needs(layout, columns string) error {
	if missing := t.has(columns); len(missing) > 0 {
		return t.refuse(UnknownLayout, "leave --layout out, or write a mapping: --print-mapping prints one to start from",
			"the layout is not %s: the columns %s are missing", layout, strings.Join(missing, ", "))
	}
	return nil
}

func (t *Table) river() (Mapping, error) {
	m := Mapping{
		Layout: LayoutRiver, Order: t.Key, Topic: t.from("queue"), Type: t.from("kind"), Payload: t.from("args"), CreatedAt: t.from("createdat"), NotBefore: t.from("scheduledat"),
		State: &State{
			Column: t.from("state").Column, Pending: []string{"available", "scheduled", "retryable", "pending"}, InProgress: []string{"running"},
			Sent: []string{"completed"}, Dead: []string{"cancelled", "discarded"}, Handed: "completed", Set: map[string]string{t.from("finalizedat").Column: "now()"},
		},
	}
	m.State.keep(t)
	return m, t.needs(LayoutRiver, "kind args state queue finalizedat scheduledat")
}

func (t *Table) pgboss() (Mapping, error) {
	m := Mapping{
		Layout: LayoutPgBoss, Order: t.order(), ID: t.from("id"), Topic: t.from("name"), Key: t.from("singletonkey"), Payload: t.from("data"),
		CreatedAt: t.from("createdon", Time, LocalTime), NotBefore: t.from("startafter", Time, LocalTime),
		State: &State{
			Column: t.from("state").Column, Pending: []string{"created", "retry"}, InProgress: []string{"active"}, Sent: []string{"completed"},
			Dead: []string{"failed", "expired", "cancelled"}, Handed: "completed",
		},
	}
	if c, ok := t.find("completedon"); ok {
		m.State.Set = map[string]string{c.Name: "now()"}
	}
	m.State.keep(t)
	return m, t.needs(LayoutPgBoss, "name data state")
}

// keep leaves out the values that the column's type does not have.
func (s *State) keep(t *Table) {
	c, ok := t.Column(s.Column)
	if !ok || len(c.Words) == 0 {
		return
	}
	gone := func(w string) bool { return !slices.Contains(c.Words, w) }
	for _, list := range []*[]string{&s.Pending, &s.InProgress, &s.Sent, &s.Dead} {
		*list = slices.DeleteFunc(*list, gone)
	}
}

func (t *Table) watermill() (Mapping, error) {
	topic := strings.TrimPrefix(t.Name, "watermill_")
	m := Mapping{
		Layout: LayoutWatermill, Order: []string{t.from("offset").Column}, ID: t.from("uuid"), Topic: Source{Value: topic}, Payload: t.from("payload"),
		Headers: t.from("metadata"), CreatedAt: t.from("createdat", Time, LocalTime),
	}
	return m, t.needs(LayoutWatermill, "offset uuid payload metadata")
}

// forwarder is a table whose payloads wrap a message and the topic that it goes to.
func (t *Table) forwarder() (Mapping, error) {
	m, err := t.watermill()
	m.Layout = LayoutForwarder
	c, _ := t.Column(m.Payload.Column)
	p := speak(t.Dialect).wrapped(c, "{row}."+speak(t.Dialect).ident(c.Name))
	m.ID, m.Topic, m.Payload, m.Headers = Source{SQL: p.id}, Source{SQL: p.topic}, Source{SQL: p.payload}, Source{SQL: p.headers}
	return m, err
}

func (t *Table) debezium() (Mapping, error) {
	m := Mapping{
		Layout: LayoutDebezium, Order: t.order(), ID: t.from("id"), Topic: t.from("aggregatetype"), Key: t.from("aggregateid"), Type: t.from("type"), Payload: t.from("payload"),
	}
	return m, t.needs(LayoutDebezium, "aggregatetype aggregateid type payload")
}

// flag is the column that says whether a row was published, and whether it is a time.
func (t *Table) flag() (c Column, isTime, ok bool) {
	if c, ok = t.find(flagNames, Bool, Number); ok {
		return c, false, true
	}
	for _, c := range t.Columns {
		if slices.Contains(strings.Fields(sentNames), plain(c.Name)) && c.Nullable && (c.Class == Time || c.Class == LocalTime) {
			return c, true, true
		}
	}
	return Column{}, false, false
}

func (t *Table) published() (Mapping, error) {
	m := t.common(LayoutPublished)
	c, isTime, ok := t.flag()
	if !ok {
		return m, t.refuse(UnknownLayout, "leave --layout out, or write a mapping: --print-mapping prints one to start from",
			"the layout is not %s: the column published (a truth) or published_at (a time that may be NULL) is missing", LayoutPublished)
	}
	m.State = &State{Column: c.Name}
	switch {
	case isTime:
		m.State.NullPending, m.State.Handed = true, now
	case c.Class == Number:
		m.State.Pending, m.State.Sent, m.State.Handed = []string{"0"}, []string{"1"}, "1"
	default:
		m.State.Pending, m.State.Sent, m.State.Handed = []string{"false"}, []string{"true"}, "true"
	}
	if !isTime {
		m.State.NullPending = c.Nullable
		if at, ok := t.find(sentNames, Time, LocalTime); ok {
			m.State.SentAt, m.State.Set = at.Name, map[string]string{at.Name: "now()"}
		}
	}
	return m, nil
}

// now is the value of a State.Handed that is a time.
const now = "now"
