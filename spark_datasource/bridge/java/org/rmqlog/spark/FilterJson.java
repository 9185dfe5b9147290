package org.rmqlog.spark;

import java.util.Arrays;
import java.util.List;
import java.util.Optional;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.sources.AlwaysFalse;
import org.apache.spark.sql.sources.AlwaysTrue;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.sources.StringContains;
import org.apache.spark.sql.sources.StringEndsWith;
import org.apache.spark.sql.sources.StringStartsWith;

/** Spark's filters as JSON trees. What has no exact form becomes {@code unknown}. */
final class FilterJson {
  private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
  private static final String UNKNOWN = "unknown";

  private FilterJson() {}

  /** The tree of one filter. */
  static ObjectNode of(Filter filter) {
    if (filter instanceof And and) {
      return and(List.of(of(and.left()), of(and.right())));
    } else if (filter instanceof Or or) {
      return node("or", List.of(of(or.left()), of(or.right())));
    } else if (filter instanceof Not not) {
      return node("not", List.of(of(not.child())));
    } else if (filter instanceof AlwaysTrue) {
      return op("true");
    } else if (filter instanceof AlwaysFalse) {
      return op("false");
    } else if (filter instanceof IsNull isNull) {
      return op("isNull").put("column", isNull.attribute());
    } else if (filter instanceof IsNotNull isNotNull) {
      return op("isNotNull").put("column", isNotNull.attribute());
    }
    return ofComparison(filter);
  }

  /** All of these trees together. */
  static ObjectNode and(List<ObjectNode> args) {
    return node("and", args);
  }

  /** Whether the tree says everything about its filter. */
  static boolean isKnown(ObjectNode tree) {
    return !tree.findValuesAsText("op").contains(UNKNOWN);
  }

  // Comparisons on collated strings are other classes, so they end as unknown: a match by
  // collation is wider than one by bytes.
  private static ObjectNode ofComparison(Filter filter) {
    if (filter instanceof EqualTo f) {
      return comparison("eq", f.attribute(), f.value());
    } else if (filter instanceof EqualNullSafe f) {
      return comparison("eqNullSafe", f.attribute(), f.value());
    } else if (filter instanceof LessThan f) {
      return comparison("lt", f.attribute(), f.value());
    } else if (filter instanceof LessThanOrEqual f) {
      return comparison("le", f.attribute(), f.value());
    } else if (filter instanceof GreaterThan f) {
      return comparison("gt", f.attribute(), f.value());
    } else if (filter instanceof GreaterThanOrEqual f) {
      return comparison("ge", f.attribute(), f.value());
    } else if (filter instanceof StringStartsWith f) {
      return comparison("startsWith", f.attribute(), f.value());
    } else if (filter instanceof StringEndsWith f) {
      return comparison("endsWith", f.attribute(), f.value());
    } else if (filter instanceof StringContains f) {
      return comparison("contains", f.attribute(), f.value());
    } else if (filter instanceof In f) {
      return in(f.attribute(), f.values());
    }
    return op(UNKNOWN);
  }

  private static ObjectNode comparison(String op, String column, Object value) {
    Optional<Literal> literal = Literal.of(value);
    if (literal.isEmpty()) {
      return op(UNKNOWN);
    }
    ObjectNode node = op(op).put("column", column).put("type", literal.get().type());
    node.set("value", literal.get().json());
    return node;
  }

  private static ObjectNode in(String column, Object[] values) {
    List<Optional<Literal>> literals = Arrays.stream(values).map(Literal::of).toList();
    if (literals.stream().anyMatch(Optional::isEmpty)) {
      return op(UNKNOWN);
    }
    // Spark gave all values the column's type; NULL alone says nothing about it.
    String type = literals.stream()
        .map(literal -> literal.get().type())
        .filter(name -> !name.equals(Literal.NULL))
        .findFirst()
        .orElse(Literal.NULL);
    ObjectNode node = op("in").put("column", column).put("type", type);
    ArrayNode array = node.putArray("values");
    literals.forEach(literal -> array.add(literal.get().json()));
    return node;
  }

  private static ObjectNode node(String op, List<ObjectNode> args) {
    ObjectNode node = op(op);
    node.putArray("args").addAll(args);
    return node;
  }

  private static ObjectNode op(String op) {
    return JSON.objectNode().put("op", op);
  }

  /** A value with the name of its type. */
  private record Literal(String type, JsonNode json) {
    static final String NULL = "null";

    static Optional<Literal> of(Object value) {
      return Optional.ofNullable(orNull(value));
    }

    private static Literal orNull(Object value) {
      if (value == null) {
        return new Literal(NULL, JSON.nullNode());
      } else if (value instanceof String text) {
        // Bytes that are not UTF-8 became this character: the text may not be what was compared.
        return text.indexOf('\uFFFD') >= 0 ? null : new Literal("string", JSON.textNode(text));
      } else if (value instanceof Byte || value instanceof Short
          || value instanceof Integer || value instanceof Long) {
        return new Literal("long", JSON.numberNode(((Number) value).longValue()));
      } else if (value instanceof Float || value instanceof Double) {
        double number = ((Number) value).doubleValue();
        return Double.isFinite(number) ? new Literal("double", JSON.numberNode(number)) : null;
      } else if (value instanceof Boolean flag) {
        return new Literal("boolean", JSON.booleanNode(flag));
      } else if (value instanceof java.sql.Timestamp || value instanceof java.time.Instant) {
        // Spark's own inverse: it undoes the calendar change for times before 1582, too.
        return new Literal("timestamp", JSON.numberNode(DateTimeUtils.anyToMicros(value)));
      } else if (value instanceof byte[] bytes) {
        return new Literal("binary", JSON.binaryNode(bytes));
      }
      return null;
    }
  }
}
