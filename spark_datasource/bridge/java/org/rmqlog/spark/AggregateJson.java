package org.rmqlog.spark;

import java.util.Optional;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;

/** An aggregate as JSON: counts, least and greatest values of plain columns. */
final class AggregateJson {
  private AggregateJson() {}

  /** Nothing when a part of it has no form in JSON: then it stays with Spark. */
  static Optional<ObjectNode> of(Aggregation aggregation) {
    ObjectNode json = JsonNodeFactory.instance.objectNode();
    ArrayNode groupBy = json.putArray("groupBy");
    for (Expression expression : aggregation.groupByExpressions()) {
      Optional<String> column = column(expression);
      if (column.isEmpty()) {
        return Optional.empty();
      }
      groupBy.add(column.get());
    }
    ArrayNode aggregates = json.putArray("aggregates");
    for (AggregateFunc function : aggregation.aggregateExpressions()) {
      Optional<ObjectNode> aggregate = of(function);
      if (aggregate.isEmpty()) {
        return Optional.empty();
      }
      aggregates.add(aggregate.get());
    }
    return Optional.of(json);
  }

  private static Optional<ObjectNode> of(AggregateFunc function) {
    if (function instanceof CountStar) {
      return Optional.of(JsonNodeFactory.instance.objectNode().put("func", "count"));
    } else if (function instanceof Count count && !count.isDistinct()) {
      return of("count", count.column());
    } else if (function instanceof Min min) {
      return of("min", min.column());
    } else if (function instanceof Max max) {
      return of("max", max.column());
    }
    return Optional.empty();
  }

  private static Optional<ObjectNode> of(String name, Expression argument) {
    return column(argument)
        .map(column ->
            JsonNodeFactory.instance.objectNode().put("func", name).put("column", column));
  }

  private static Optional<String> column(Expression expression) {
    return expression instanceof NamedReference reference && reference.fieldNames().length == 1
        ? Optional.of(reference.fieldNames()[0])
        : Optional.empty();
  }
}
