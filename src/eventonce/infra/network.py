"""What a VPC takes: where the function is, and ways out to services where there is no other.

A way to DynamoDB costs nothing; one to SQS costs by the hour, and is made only if asked for.
"""

from __future__ import annotations

from typing import Any, Final

from eventonce.infra.plan import Plan

VPC: Final = "The VPC, in which endpoints are made"
SUBNETS: Final = "Subnets, in two availability zones or more"
SECURITY_GROUPS: Final = "Security groups; they must let HTTPS out, and for an SQS endpoint in"
SQS_ENDPOINT: Final = "Whether to make a VPC endpoint for SQS, which costs by the hour"
ROUTE_TABLES: Final = "Route tables that get a way to DynamoDB; empty if they have one"


def sam_parameters(plan: Plan) -> dict[str, Any]:
    """What SAM must be told."""
    said: dict[str, Any] = {
        "VpcId": {"Type": "AWS::EC2::VPC::Id", "Description": VPC},
        "SubnetIds": {"Type": "List<AWS::EC2::Subnet::Id>", "Description": SUBNETS},
        "SecurityGroupIds": {
            "Type": "List<AWS::EC2::SecurityGroup::Id>",
            "Description": SECURITY_GROUPS,
        },
        "SqsEndpoint": {
            "Type": "String",
            "Default": "no",
            "AllowedValues": ["no", "yes"],
            "Description": SQS_ENDPOINT,
        },
    }
    if plan.table is not None:
        said["RouteTableIds"] = {
            "Type": "CommaDelimitedList",
            "Default": "",
            "Description": ROUTE_TABLES,
        }
    return said


def sam_conditions(plan: Plan) -> dict[str, Any]:
    """Which ways out are made."""
    said: dict[str, Any] = {"MakeSqsEndpoint": {"Fn::Equals": [{"Ref": "SqsEndpoint"}, "yes"]}}
    if plan.table is not None:
        joined = {"Fn::Join": ["", {"Ref": "RouteTableIds"}]}
        said["HasRouteTables"] = {"Fn::Not": [{"Fn::Equals": [joined, ""]}]}
    return said


def sam_endpoints(plan: Plan) -> dict[str, Any]:
    """The ways out."""
    made = {
        "SqsVpcEndpoint": {
            "Type": "AWS::EC2::VPCEndpoint",
            "Condition": "MakeSqsEndpoint",
            "Properties": {
                "VpcEndpointType": "Interface",
                "ServiceName": {"Fn::Sub": "com.amazonaws.${AWS::Region}.sqs"},
                "VpcId": {"Ref": "VpcId"},
                "SubnetIds": {"Ref": "SubnetIds"},
                "SecurityGroupIds": {"Ref": "SecurityGroupIds"},
                "PrivateDnsEnabled": True,
            },
        }
    }
    if plan.table is not None:
        made["DynamoDBVpcEndpoint"] = {
            "Type": "AWS::EC2::VPCEndpoint",
            "Condition": "HasRouteTables",
            "Properties": {
                "VpcEndpointType": "Gateway",
                "ServiceName": {"Fn::Sub": "com.amazonaws.${AWS::Region}.dynamodb"},
                "VpcId": {"Ref": "VpcId"},
                "RouteTableIds": {"Ref": "RouteTableIds"},
            },
        }
    return made


def terraform_variables(plan: Plan) -> dict[str, Any]:
    """What Terraform must be told."""
    said: dict[str, Any] = {
        "vpc_id": {"type": "string", "description": VPC},
        "subnet_ids": {"type": "list(string)", "description": SUBNETS},
        "security_group_ids": {"type": "list(string)", "description": SECURITY_GROUPS},
        "sqs_endpoint": {
            "type": "bool",
            "default": False,
            "description": SQS_ENDPOINT,
        },
    }
    if plan.table is not None:
        said["route_table_ids"] = {
            "type": "list(string)",
            "default": [],
            "description": ROUTE_TABLES,
        }
    return said


def terraform_endpoints(plan: Plan) -> dict[str, Any]:
    """The ways out."""
    made: dict[str, Any] = {
        "sqs": {
            "count": "${var.sqs_endpoint ? 1 : 0}",
            "vpc_endpoint_type": "Interface",
            "service_name": "com.amazonaws.${data.aws_region.current.id}.sqs",
            "vpc_id": "${var.vpc_id}",
            "subnet_ids": "${var.subnet_ids}",
            "security_group_ids": "${var.security_group_ids}",
            "private_dns_enabled": True,
        }
    }
    if plan.table is not None:
        made["dynamodb"] = {
            "count": "${length(var.route_table_ids) > 0 ? 1 : 0}",
            "vpc_endpoint_type": "Gateway",
            "service_name": "com.amazonaws.${data.aws_region.current.id}.dynamodb",
            "vpc_id": "${var.vpc_id}",
            "route_table_ids": "${var.route_table_ids}",
        }
    return made
