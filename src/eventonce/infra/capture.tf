# A rule and a queue of a capture's own, or a log group: copies of events, taken from nobody.
# `eventonce infra terraform --role capture` prints this file with the defaults set.
# Destroy it when the capture is over.

terraform {
  required_version = ">= 1.4"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.50"
    }
  }
}

variable "capture_to" {
  type        = string
  default     = "queue"
  description = "Where the copies go, a queue (eventonce capture --queue) or a log group (--log-group)"
  validation {
    condition     = contains(["queue", "log-group"], var.capture_to)
    error_message = "The copies go to queue or log-group."
  }
}

variable "bus_name" {
  type        = string
  default     = "default"
  description = "The event bus; a partner's bus has the name of its event source"
}

variable "rule_name" {
  type        = string
  default     = "eventonce-capture"
  description = "The EventBridge rule"
}

variable "event_pattern" {
  type        = string
  description = "The events that are captured, a JSON event pattern"
}

variable "queue_name" {
  type        = string
  default     = "eventonce-capture"
  description = "The queue; by the end of its name eventonce capture knows that nobody else reads it"
  validation {
    condition     = endswith(var.queue_name, "-capture")
    error_message = "The name of the queue must end with -capture."
  }
}

variable "log_group_name" {
  type        = string
  default     = "/aws/events/eventonce-capture"
  description = "The log group; EventBridge writes to no other than /aws/events/"
}

variable "retention_in_days" {
  type        = number
  default     = 14
  description = "Days that the log group keeps a line"
}

locals {
  queue     = var.capture_to == "queue" ? 1 : 0
  log_group = var.capture_to == "log-group" ? 1 : 0
}

resource "aws_cloudwatch_event_rule" "capture" {
  name           = var.rule_name
  event_bus_name = var.bus_name
  event_pattern  = var.event_pattern
}

resource "aws_cloudwatch_event_target" "capture" {
  rule           = aws_cloudwatch_event_rule.capture.name
  event_bus_name = var.bus_name
  target_id      = "capture"
  arn            = local.queue == 1 ? aws_sqs_queue.capture[0].arn : aws_cloudwatch_log_group.capture[0].arn
  # Events that the rule sends before the policies allow it are refused.
  depends_on = [aws_sqs_queue_policy.capture, aws_cloudwatch_log_resource_policy.capture]
}

resource "aws_sqs_queue" "capture" {
  count                      = local.queue
  name                       = var.queue_name
  message_retention_seconds  = 1209600
  visibility_timeout_seconds = 120
  sqs_managed_sse_enabled    = true
}

resource "aws_sqs_queue_policy" "capture" {
  count     = local.queue
  queue_url = aws_sqs_queue.capture[0].url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Rule"
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = aws_sqs_queue.capture[0].arn
      Condition = { ArnEquals = { "aws:SourceArn" = aws_cloudwatch_event_rule.capture.arn } }
    }]
  })
}

resource "aws_cloudwatch_log_group" "capture" {
  count             = local.log_group
  name              = var.log_group_name
  retention_in_days = var.retention_in_days
}

resource "aws_cloudwatch_log_resource_policy" "capture" {
  count       = local.log_group
  policy_name = var.rule_name
  policy_document = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Rule"
      Effect    = "Allow"
      Principal = { Service = ["events.amazonaws.com", "delivery.logs.amazonaws.com"] }
      Action    = ["logs:CreateLogStream", "logs:PutLogEvents"]
      Resource  = "${aws_cloudwatch_log_group.capture[0].arn}:*"
    }]
  })
}

# The same as `eventonce infra iam --role capture` prints.
resource "aws_iam_policy" "capture" {
  name        = var.rule_name
  description = "The rights of eventonce capture"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = local.queue == 1 ? [{
      Sid      = "Receive"
      Effect   = "Allow"
      Action   = ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
      Resource = aws_sqs_queue.capture[0].arn
      }] : [{
      Sid      = "Read"
      Effect   = "Allow"
      Action   = ["logs:FilterLogEvents"]
      Resource = "${aws_cloudwatch_log_group.capture[0].arn}:*"
    }]
  })
}

output "capture_from" {
  description = "What eventonce capture is given"
  value       = local.queue == 1 ? "--queue sqs://${var.queue_name}" : "--log-group ${var.log_group_name}"
}

output "policy_arn" {
  description = "The rights of eventonce capture"
  value       = aws_iam_policy.capture.arn
}
