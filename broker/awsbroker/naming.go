package awsbroker

import (
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/arn"
)

// naming names queues, or topics of SNS.
type naming struct {
	kind     string // "queue" or "topic", for errors
	service  string // "sqs" or "sns", as in ARNs
	region   string // of the client; "": unknown
	most     int    // bytes of a name, suffix and all
	prefix   string
	standard bool
}

const fifoSuffix = ".fifo"

// name is the queue of a topic: its name, or its ARN if that is the topic. A FIFO
// queue's name ends in .fifo, which is added to names, not to ARNs.
func (n *naming) name(topic string) string {
	if isARN(topic) {
		return topic
	}
	return n.withSuffix(n.prefix + topic)
}

// withSuffix is the queue of a destination, which has the prefix already.
func (n *naming) withSuffix(name string) string {
	if n.standard || isARN(name) || strings.HasSuffix(name, fifoSuffix) {
		return name
	}
	return name + fifoSuffix
}

// topicOf is the topic of a message that does not name it.
func (n *naming) topicOf(name string) string {
	name = plainName(name)
	if !n.standard {
		name = strings.TrimSuffix(name, fifoSuffix)
	}
	return strings.TrimPrefix(name, n.prefix)
}

func isARN(queue string) bool { return strings.HasPrefix(queue, "arn:") }

// plainName is the name of a queue that is given by name or ARN.
func plainName(queue string) string {
	if isARN(queue) {
		return queue[strings.LastIndexByte(queue, ':')+1:]
	}
	return queue
}

// misfit is a problem of an ARN that another URL solves: the message is not at fault.
type misfit string

func (m misfit) Error() string { return string(m) }

// problem returns the fault of a queue's name or ARN.
func (n *naming) problem(name string) error {
	if isARN(name) {
		a, err := arn.Parse(name)
		fifo := strings.HasSuffix(a.Resource, fifoSuffix)
		switch {
		case err != nil || a.Service != n.service || a.Region == "" || a.AccountID == "":
			return fmt.Errorf("a %s's ARN must be arn:PARTITION:%s:REGION:ACCOUNT:NAME", n.kind, n.service)
		case n.region != "" && a.Region != n.region:
			return misfit(fmt.Sprintf("the %s's ARN is of region %s, the client's is %s: use a URL of that region", n.kind, a.Region, n.region))
		case fifo && n.standard:
			return misfit(fmt.Sprintf("the ARN names a FIFO %s: use type=fifo", n.kind))
		case !fifo && !n.standard:
			return misfit(fmt.Sprintf("the ARN names a standard %s: use type=standard", n.kind))
		}
		name = a.Resource
	}
	if len(name) > n.most {
		return fmt.Errorf("the %s's name has %d bytes with prefix and .fifo, %s allows %d", n.kind, len(name), strings.ToUpper(n.service), n.most)
	}
	plain := strings.TrimSuffix(name, fifoSuffix)
	for i := range len(plain) {
		c := plain[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			plain = ""
			break
		}
	}
	if plain == "" {
		return fmt.Errorf("a %s's name has letters, digits, - and _ only: use a route with such a topic", n.kind)
	}
	return nil
}
