# Queue, dead-letter queues, rule, table, function or policies, alarms and dashboard of one consumer.
# `eventonce infra terraform` prints this file with the defaults set; it is a module as well.

terraform {
  required_version = ">= 1.4"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.50"
    }
  }
}

variable "name" {
  type        = string
  default     = "eventonce"
  description = "The name of the function, its logs, the policies and the alarms"
}

variable "role" {
  type        = string
  default     = "lambda"
  description = "The consumer: a function (lambda), or a worker (eventonce run)"
  validation {
    condition     = contains(["lambda", "worker"], var.role)
    error_message = "The role must be lambda or worker."
  }
}

variable "consumer_name" {
  type        = string
  default     = "eventonce"
  description = "The consumer's name, which is part of every key"
}

variable "store_uri" {
  type        = string
  default     = ""
  sensitive   = true
  description = "The function's store, such as dynamodb://NAME or rediss://user:password@host:6379/0"
}

variable "package" {
  type        = string
  default     = "function.zip"
  description = "The function's code, a zip file"
}

variable "timeout" {
  type        = number
  default     = 60
  description = "Seconds that a run of the function may take"
}

variable "bus_name" {
  type        = string
  default     = "default"
  description = "The event bus; a partner's bus has the name of its event source"
}

variable "create_bus" {
  type        = string
  default     = "no"
  description = "Whether to create the bus (yes), and to join it to the partner's event source (partner)"
}

variable "rule_name" {
  type        = string
  default     = "eventonce"
  description = "The EventBridge rule"
}

variable "event_pattern" {
  type        = string
  description = "The events that the rule sends to the queue, a JSON event pattern"
}

variable "other_rule_arns" {
  type        = list(string)
  default     = []
  description = "Rules outside this stack that may send to the queue too"
}

variable "queue_name" {
  type        = string
  default     = "eventonce"
  description = "The queue, without .fifo"
}

variable "fifo" {
  type        = bool
  default     = false
  description = "Whether the queue keeps an order"
}

variable "visibility_timeout" {
  type        = number
  default     = 360
  description = "Seconds until a message that was received and not deleted is visible again; Lambda recommends six timeouts"
}

variable "max_receive_count" {
  type        = number
  default     = 100
  description = "Receives after which SQS moves a message to the dead-letter queue"
}

variable "table_name" {
  type        = string
  default     = ""
  description = "The DynamoDB table to create for the store; empty for none"
}

variable "table_key" {
  type        = string
  default     = "eventHash"
  description = "The table's partition key"
}

variable "table_expiry" {
  type        = string
  default     = "expiration"
  description = "The attribute by which DynamoDB expires items"
}

variable "table_arn" {
  type        = string
  default     = ""
  description = "The store's table, if it is not created here"
}

variable "letter_queue_name" {
  type        = string
  default     = ""
  description = "The queue to create for dead letters; empty if the store keeps them"
}

variable "letter_queue_fifo" {
  type        = bool
  default     = false
  description = "Whether that queue is a FIFO queue"
}

variable "letter_queue_arn" {
  type        = string
  default     = ""
  description = "The queue for dead letters, if it is not created here"
}

variable "drop_old_letters" {
  type        = bool
  default     = false
  description = "Whether the consumer drops old dead letters of the table, by its keep_letters"
}

variable "sink_queue_arns" {
  type        = list(string)
  default     = []
  description = "Queues that sinks send to"
}

variable "sink_bus_arns" {
  type        = list(string)
  default     = []
  description = "Event buses that sinks put events on"
}

variable "alarm_topic_arn" {
  type        = string
  default     = ""
  description = "The SNS topic that alarms are sent to; empty for none"
}

variable "create_dashboard" {
  type        = string
  default     = "no"
  description = "Whether to create a CloudWatch dashboard (yes); it and the function's metrics cost by the month"
}

variable "vpc_id" {
  type        = string
  default     = ""
  description = "The VPC of the function and of the endpoints; empty for none"
}

variable "subnet_ids" {
  type        = list(string)
  default     = []
  description = "Subnets of the VPC, in two availability zones or more"
}

variable "security_group_ids" {
  type        = list(string)
  default     = []
  description = "Security groups; they must let HTTPS out, and for an SQS endpoint in"
}

variable "route_table_ids" {
  type        = list(string)
  default     = []
  description = "Route tables of the VPC that get an endpoint for DynamoDB, which is free"
}

variable "sqs_endpoint" {
  type        = string
  default     = "no"
  description = "Whether to create a VPC endpoint for SQS (yes), which costs by the hour"
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  function     = var.role == "lambda" ? 1 : 0
  in_vpc       = var.vpc_id != ""
  suffix       = var.fifo ? ".fifo" : ""
  on_bus       = var.bus_name == "default" ? "" : "\"EventBusName\", \"${var.bus_name}\", "
  bus          = var.create_bus == "no" ? var.bus_name : aws_cloudwatch_event_bus.bus[0].name
  table        = var.table_name != "" ? aws_dynamodb_table.store[0].arn : var.table_arn
  has_table    = var.table_name != "" || var.table_arn != ""
  letter_queue = var.letter_queue_name != "" ? aws_sqs_queue.letters[0].arn : var.letter_queue_arn
  has_letters  = var.letter_queue_name != "" || var.letter_queue_arn != ""
  rules        = concat([aws_cloudwatch_event_rule.rule.arn], var.other_rule_arns)

  # Who may do what: the same as `eventonce infra iam` prints. A statement about nothing is left out.
  shared = [
    {
      Sid    = "Store"
      Effect = "Allow"
      Action = [
        "dynamodb:BatchGetItem",
        "dynamodb:PartiQLDelete",
        "dynamodb:PartiQLInsert",
        "dynamodb:PartiQLUpdate",
        "dynamodb:PutItem",
      ]
      Resource = local.has_table ? [local.table] : []
    },
    {
      Sid      = "Keep"
      Effect   = "Allow"
      Action   = ["sqs:GetQueueUrl", "sqs:SendMessage"]
      Resource = local.has_letters ? [local.letter_queue] : []
    },
    {
      Sid      = "Send"
      Effect   = "Allow"
      Action   = ["sqs:GetQueueUrl", "sqs:SendMessage"]
      Resource = var.sink_queue_arns
    },
    {
      Sid      = "Put"
      Effect   = "Allow"
      Action   = ["events:DescribeEventBus", "events:PutEvents"]
      Resource = var.sink_bus_arns
    },
  ]
  dropping = [
    {
      Sid      = "Letters"
      Effect   = "Allow"
      Action   = ["dynamodb:Query"]
      Resource = local.has_table && var.drop_old_letters ? ["${local.table}/index/letters"] : []
    },
  ]
  receive = [
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
  ]
  policies = {
    lambda = concat(local.shared, local.dropping, [
      {
        Sid    = "Poll"
        Effect = "Allow"
        Action = [
          "sqs:ChangeMessageVisibility",
          "sqs:DeleteMessage",
          "sqs:GetQueueAttributes",
          "sqs:ReceiveMessage",
        ]
        Resource = [aws_sqs_queue.queue.arn]
      },
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = [for group in aws_cloudwatch_log_group.function : "${group.arn}:*"]
      },
      {
        Sid    = "Network"
        Effect = "Allow"
        Action = [
          "ec2:AssignPrivateIpAddresses",
          "ec2:CreateNetworkInterface",
          "ec2:DeleteNetworkInterface",
          "ec2:DescribeNetworkInterfaces",
          "ec2:DescribeSubnets",
          "ec2:UnassignPrivateIpAddresses",
        ]
        # Lambda takes no narrower resource for the network interfaces that it makes.
        Resource = local.in_vpc ? ["*"] : []
      },
    ])
    worker = concat(local.shared, local.dropping, [
      {
        Sid      = "Receive"
        Effect   = "Allow"
        Action   = local.receive
        Resource = [aws_sqs_queue.queue.arn]
      },
    ])
    operate = concat(local.shared, [
      {
        Sid    = "DeadLetters"
        Effect = "Allow"
        Action = local.receive
        Resource = concat(
          [aws_sqs_queue.dead.arn, aws_sqs_queue.undelivered.arn],
          local.has_letters ? [local.letter_queue] : [],
        )
      },
      {
        Sid      = "Letters"
        Effect   = "Allow"
        Action   = ["dynamodb:Query"]
        Resource = local.has_table ? ["${local.table}/index/letters"] : []
      },
      {
        Sid      = "Describe"
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"]
        Resource = local.has_table ? [local.table] : []
      },
    ])
  }

  alarms = merge(
    {
      DeadLetters = {
        description = "Messages were received too often and moved here. `eventonce letters` shows them."
        namespace   = "AWS/SQS"
        metric      = "ApproximateNumberOfMessagesVisible"
        dimensions  = { QueueName = aws_sqs_queue.dead.name }
        statistic   = "Maximum"
        threshold   = 0
      }
      Undelivered = {
        description = "EventBridge could not deliver events. Look at the queue's policy and key."
        namespace   = "AWS/SQS"
        metric      = "ApproximateNumberOfMessagesVisible"
        dimensions  = { QueueName = aws_sqs_queue.undelivered.name }
        statistic   = "Maximum"
        threshold   = 0
      }
      Lost = {
        description = "EventBridge could not even keep the events that it could not deliver."
        namespace   = "AWS/Events"
        metric      = "InvocationsFailedToBeSentToDlq"
        # Without the bus the metric is that of the default bus.
        dimensions = merge(
          { RuleName = var.rule_name },
          var.bus_name == "default" ? {} : { EventBusName = var.bus_name },
        )
        statistic = "Sum"
        threshold = 0
      }
      Late = {
        description = "The oldest message waits for more than an hour. The consumer is down or too slow."
        namespace   = "AWS/SQS"
        metric      = "ApproximateAgeOfOldestMessage"
        dimensions  = { QueueName = aws_sqs_queue.queue.name }
        statistic   = "Maximum"
        threshold   = 3600
      }
    },
    {
      for queue in aws_sqs_queue.letters : "Letters" => {
        description = "Events were given up. `eventonce letters` shows them, and why."
        namespace   = "AWS/SQS"
        metric      = "ApproximateNumberOfMessagesVisible"
        dimensions  = { QueueName = queue.name }
        statistic   = "Maximum"
        threshold   = 0
      }
    },
    {
      for filter in aws_cloudwatch_log_metric_filter.given_up : "GivenUp" => {
        description = "Events were given up. The function's log says why, and `eventonce letters` has them."
        namespace   = "eventonce/${var.name}"
        metric      = "GivenUp"
        dimensions  = {}
        statistic   = "Sum"
        threshold   = 0
      }
    },
    {
      for metric, description in {
        Errors    = "The function fails as a whole."
        Throttles = "The function may not run as often at once as it should."
        } : metric => {
        description = description
        namespace   = "AWS/Lambda"
        metric      = metric
        dimensions  = { FunctionName = var.name }
        statistic   = "Sum"
        threshold   = 0
      } if local.function == 1
    },
    {
      for kind in ["Read", "Write"] : "Table${kind}Throttles" => {
        description = "The table is throttled. Look for a hot key, and at the account's limits."
        namespace   = "AWS/DynamoDB"
        metric      = "${kind}ThrottleEvents"
        dimensions  = { TableName = var.table_name }
        statistic   = "Sum"
        threshold   = 0
      } if var.table_name != ""
    },
  )
}

# Events on their way: bus, rule, queue.

resource "aws_cloudwatch_event_bus" "bus" {
  count             = var.create_bus == "no" ? 0 : 1
  name              = var.bus_name
  event_source_name = var.create_bus == "partner" ? var.bus_name : null
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_cloudwatch_event_rule" "rule" {
  name           = var.rule_name
  event_bus_name = local.bus
  event_pattern  = var.event_pattern
}

resource "aws_cloudwatch_event_target" "queue" {
  rule           = aws_cloudwatch_event_rule.rule.name
  event_bus_name = local.bus
  target_id      = "queue"
  arn            = aws_sqs_queue.queue.arn
  # The most that EventBridge offers of both.
  retry_policy {
    maximum_retry_attempts       = 185
    maximum_event_age_in_seconds = 86400
  }
  dead_letter_config {
    arn = aws_sqs_queue.undelivered.arn
  }
  # A rule names one message group for all of its events.
  dynamic "sqs_target" {
    for_each = var.fifo ? ["eventonce"] : []
    content {
      message_group_id = sqs_target.value
    }
  }
  # Events that the rule sends before the policies allow it are refused.
  depends_on = [aws_sqs_queue_policy.queue, aws_sqs_queue_policy.undelivered]
}

resource "aws_sqs_queue" "queue" {
  name       = "${var.queue_name}${local.suffix}"
  fifo_queue = var.fifo
  # EventBridge names no deduplication id, and SQS refuses a message without one or this.
  content_based_deduplication = var.fifo
  visibility_timeout_seconds  = var.visibility_timeout
  # Four days: with four of a re-publish and one of EventBridge's retries nine, and a fact is
  # remembered for ten.
  message_retention_seconds = 345600
  receive_wait_time_seconds = 20
  sqs_managed_sse_enabled   = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = var.max_receive_count
  })
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_sqs_queue" "dead" {
  name                        = "${var.queue_name}-dead${local.suffix}"
  fifo_queue                  = var.fifo
  content_based_deduplication = var.fifo
  message_retention_seconds   = 1209600
  sqs_managed_sse_enabled     = true
  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    # By its name, since the queue itself refers to its dead-letter queue.
    sourceQueueArns = [join(":", [
      "arn",
      data.aws_partition.current.partition,
      "sqs",
      data.aws_region.current.id,
      data.aws_caller_identity.current.account_id,
      "${var.queue_name}${local.suffix}",
    ])]
  })
  lifecycle {
    prevent_destroy = true
  }
}

# EventBridge takes no FIFO queue for events that it could not deliver.
resource "aws_sqs_queue" "undelivered" {
  name                      = "${var.queue_name}-undelivered"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
  lifecycle {
    prevent_destroy = true
  }
}

# A delivery carries the ARN of the rule. A policy that names the bus' ARN refuses every event.
resource "aws_sqs_queue_policy" "queue" {
  queue_url = aws_sqs_queue.queue.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Rule"
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = aws_sqs_queue.queue.arn
      Condition = { ArnEquals = { "aws:SourceArn" = local.rules } }
    }]
  })
}

resource "aws_sqs_queue_policy" "undelivered" {
  queue_url = aws_sqs_queue.undelivered.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Rule"
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = aws_sqs_queue.undelivered.arn
      Condition = { ArnEquals = { "aws:SourceArn" = local.rules } }
    }]
  })
}

# The consumer's records and dead letters.

resource "aws_dynamodb_table" "store" {
  count        = var.table_name == "" ? 0 : 1
  name         = var.table_name
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = var.table_key
  attribute {
    name = var.table_key
    type = "S"
  }
  attribute {
    name = "letter_group"
    type = "S"
  }
  attribute {
    name = "letter_order"
    type = "S"
  }
  global_secondary_index {
    name               = "letters"
    hash_key           = "letter_group"
    range_key          = "letter_order"
    projection_type    = "INCLUDE"
    non_key_attributes = ["consumer"]
  }
  ttl {
    attribute_name = var.table_expiry
    enabled        = true
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_sqs_queue" "letters" {
  count                       = var.letter_queue_name == "" ? 0 : 1
  name                        = var.letter_queue_name
  fifo_queue                  = var.letter_queue_fifo
  content_based_deduplication = var.letter_queue_fifo
  message_retention_seconds   = 1209600
  sqs_managed_sse_enabled     = true
  lifecycle {
    prevent_destroy = true
  }
}

# The policies: of the function or the worker, and of its operators.

resource "aws_iam_policy" "consumer" {
  name        = "${var.name}-consumer"
  description = "The rights of the function or the worker of an eventonce consumer"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [for one in local.policies[var.role] : one if length(one.Resource) > 0]
  })
}

resource "aws_iam_policy" "operate" {
  name        = "${var.name}-operate"
  description = "The rights to look at the store and to redrive dead letters"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [for one in local.policies.operate : one if length(one.Resource) > 0]
  })
}

# The function.

resource "aws_lambda_function" "function" {
  count            = local.function
  function_name    = var.name
  filename         = var.package
  source_code_hash = filebase64sha256(var.package)
  handler          = "function.handler"
  runtime          = "python3.13"
  architectures    = ["arm64"]
  # With it comes a share of a CPU: import and a batch take about a quarter of the memory.
  memory_size = 256
  timeout     = var.timeout
  role        = aws_iam_role.function[0].arn
  environment {
    variables = {
      EVENTONCE_NAME    = var.consumer_name
      EVENTONCE_STORE   = var.store_uri
      EVENTONCE_METRICS = var.create_dashboard == "yes" ? "emf" : ""
    }
  }
  dynamic "vpc_config" {
    for_each = local.in_vpc ? [var.vpc_id] : []
    content {
      subnet_ids         = var.subnet_ids
      security_group_ids = var.security_group_ids
    }
  }
  lifecycle {
    precondition {
      condition     = var.store_uri != ""
      error_message = "A function needs store_uri, the URI of a store that all its copies share."
    }
  }
  depends_on = [aws_cloudwatch_log_group.function, aws_iam_role_policy_attachment.function]
}

resource "aws_lambda_event_source_mapping" "queue" {
  count            = local.function
  event_source_arn = aws_sqs_queue.queue.arn
  function_name    = aws_lambda_function.function[0].arn
  # The most that Lambda brings without waiting for more.
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]
}

resource "aws_iam_role" "function" {
  count = local.function
  name  = "${var.name}-function"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "lambda.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "function" {
  count      = local.function
  role       = aws_iam_role.function[0].name
  policy_arn = aws_iam_policy.consumer.arn
}

resource "aws_cloudwatch_log_group" "function" {
  count             = local.function
  name              = "/aws/lambda/${var.name}"
  retention_in_days = 30
  lifecycle {
    prevent_destroy = true
  }
}

# Inside a VPC.

resource "aws_vpc_endpoint" "sqs" {
  count               = local.in_vpc && var.sqs_endpoint == "yes" ? 1 : 0
  vpc_endpoint_type   = "Interface"
  service_name        = "com.amazonaws.${data.aws_region.current.id}.sqs"
  vpc_id              = var.vpc_id
  subnet_ids          = var.subnet_ids
  security_group_ids  = var.security_group_ids
  private_dns_enabled = true
}

resource "aws_vpc_endpoint" "dynamodb" {
  count             = local.in_vpc && local.has_table && length(var.route_table_ids) > 0 ? 1 : 0
  vpc_endpoint_type = "Gateway"
  service_name      = "com.amazonaws.${data.aws_region.current.id}.dynamodb"
  vpc_id            = var.vpc_id
  route_table_ids   = var.route_table_ids
}

# Beside the function, where it writes the metrics of eventonce; of a worker the queues alone.
resource "aws_cloudwatch_dashboard" "dashboard" {
  count          = var.create_dashboard == "yes" ? 1 : 0
  dashboard_name = var.name
  dashboard_body = <<-JSON
    {"widgets": [
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Messages in the queue", "stat": "Maximum", "period": 60, "metrics": [
        ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", "${aws_sqs_queue.queue.name}", {"label": "waiting"}],
        ["AWS/SQS", "ApproximateNumberOfMessagesNotVisible", "QueueName", "${aws_sqs_queue.queue.name}", {"label": "in flight"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Age of the oldest message, seconds", "stat": "Maximum", "period": 60, "metrics": [
        ["AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", "${aws_sqs_queue.queue.name}", {"label": "oldest"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Messages in dead-letter queues", "stat": "Maximum", "period": 60, "metrics": [
        ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", "${aws_sqs_queue.dead.name}", {"label": "received too often"}],
        ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", "${aws_sqs_queue.undelivered.name}", {"label": "undelivered"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Messages of the queue a minute", "stat": "Sum", "period": 60, "metrics": [
        ["AWS/SQS", "NumberOfMessagesSent", "QueueName", "${aws_sqs_queue.queue.name}", {"label": "sent"}],
        ["AWS/SQS", "NumberOfMessagesReceived", "QueueName", "${aws_sqs_queue.queue.name}", {"label": "received"}],
        ["AWS/SQS", "NumberOfMessagesDeleted", "QueueName", "${aws_sqs_queue.queue.name}", {"label": "deleted"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "The rule a minute", "stat": "Sum", "period": 60, "metrics": [
        ["AWS/Events", "Invocations", ${local.on_bus}"RuleName", "${var.rule_name}"],
        ["AWS/Events", "FailedInvocations", ${local.on_bus}"RuleName", "${var.rule_name}"],
        ["AWS/Events", "InvocationsSentToDlq", ${local.on_bus}"RuleName", "${var.rule_name}"],
        ["AWS/Events", "InvocationsFailedToBeSentToDlq", ${local.on_bus}"RuleName", "${var.rule_name}"]
    ]}}
    %{ if var.role == "lambda" ~}
    ,{"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Events by what became of them, a minute", "stat": "Sum", "period": 60, "stacked": true, "view": "timeSeries", "metrics": [
        ["eventonce", "events_done", "consumer", "${var.consumer_name}", {"label": "done"}],
        ["eventonce", "events_duplicate", "consumer", "${var.consumer_name}", {"label": "duplicate"}],
        ["eventonce", "events_stale", "consumer", "${var.consumer_name}", {"label": "stale"}],
        ["eventonce", "events_unchanged", "consumer", "${var.consumer_name}", {"label": "unchanged"}],
        ["eventonce", "events_ignored", "consumer", "${var.consumer_name}", {"label": "ignored"}],
        ["eventonce", "events_unguarded", "consumer", "${var.consumer_name}", {"label": "unguarded"}],
        ["eventonce", "events_busy", "consumer", "${var.consumer_name}", {"label": "busy"}],
        ["eventonce", "events_failed", "consumer", "${var.consumer_name}", {"label": "failed"}],
        ["eventonce", "events_fenced", "consumer", "${var.consumer_name}", {"label": "fenced"}],
        ["eventonce", "events_dead", "consumer", "${var.consumer_name}", {"label": "dead"}],
        ["eventonce", "events_conflict", "consumer", "${var.consumer_name}", {"label": "conflict"}],
        ["eventonce", "events_invalid", "consumer", "${var.consumer_name}", {"label": "invalid"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Trouble a minute", "stat": "Sum", "period": 60, "metrics": [
        ["eventonce", "dead_letters", "consumer", "${var.consumer_name}"],
        ["eventonce", "store_errors", "consumer", "${var.consumer_name}"],
        ["eventonce", "takeovers", "consumer", "${var.consumer_name}"],
        ["eventonce", "settlements_fenced", "consumer", "${var.consumer_name}"],
        ["eventonce", "settlements_unknown", "consumer", "${var.consumer_name}"]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Lag of events, seconds", "stat": "p50", "period": 60, "metrics": [
        ["eventonce", "lag_seconds", "consumer", "${var.consumer_name}", {"label": "p50"}],
        ["eventonce", "lag_seconds", "consumer", "${var.consumer_name}", {"stat": "p99", "label": "p99"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Handlers and batches, seconds", "stat": "p99", "period": 60, "metrics": [
        ["eventonce", "handler_seconds", "consumer", "${var.consumer_name}", {"label": "handler p99"}],
        ["eventonce", "handler_seconds", "consumer", "${var.consumer_name}", {"stat": "p50", "label": "handler p50"}],
        ["eventonce", "batch_seconds", "consumer", "${var.consumer_name}", {"label": "batch p99"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Calls to the store, seconds", "stat": "p99", "period": 60, "metrics": [
        ["eventonce", "store_claim_seconds", "consumer", "${var.consumer_name}", {"label": "claim p99"}],
        ["eventonce", "store_settle_seconds", "consumer", "${var.consumer_name}", {"label": "settle p99"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Deliveries of an event, and size of a batch", "stat": "Maximum", "period": 60, "metrics": [
        ["eventonce", "receives", "consumer", "${var.consumer_name}"],
        ["eventonce", "batch_size", "consumer", "${var.consumer_name}"]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Settlements a minute", "stat": "Sum", "period": 60, "metrics": [
        ["eventonce", "settlements_kept", "consumer", "${var.consumer_name}", {"label": "kept"}]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "The function a minute", "stat": "Sum", "period": 60, "metrics": [
        ["AWS/Lambda", "Invocations", "FunctionName", "${var.name}"],
        ["AWS/Lambda", "Errors", "FunctionName", "${var.name}"],
        ["AWS/Lambda", "Throttles", "FunctionName", "${var.name}"]
    ]}},
    {"type": "metric", "width": 8, "height": 6, "properties": {"region": "${data.aws_region.current.name}",
      "title": "Duration of the function, milliseconds", "stat": "p99", "period": 60, "metrics": [
        ["AWS/Lambda", "Duration", "FunctionName", "${var.name}", {"label": "p99"}],
        ["AWS/Lambda", "Duration", "FunctionName", "${var.name}", {"stat": "p50", "label": "p50"}]
    ]}}
    %{ endif ~}
    ]}
  JSON
}

# Alarms: of five minutes each; missing data is no alarm.

# A phrase, not a field: it matches a log of text and a log of JSON.
resource "aws_cloudwatch_log_metric_filter" "given_up" {
  count          = local.function
  name           = "${var.name}-GivenUp"
  log_group_name = aws_cloudwatch_log_group.function[0].name
  pattern        = "\"given up, kept as a dead letter\""
  metric_transformation {
    namespace = "eventonce/${var.name}"
    name      = "GivenUp"
    value     = "1"
  }
}

resource "aws_cloudwatch_metric_alarm" "alarm" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  period              = 300
  evaluation_periods  = 1
  threshold           = each.value.threshold
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
}

output "queue_arn" {
  value = aws_sqs_queue.queue.arn
}

output "rule_arn" {
  value = aws_cloudwatch_event_rule.rule.arn
}

output "consumer_policy_arn" {
  value = aws_iam_policy.consumer.arn
}

output "operate_policy_arn" {
  value = aws_iam_policy.operate.arn
}
