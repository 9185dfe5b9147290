package org.rmqlog.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Notes down what Spark wants of one scan, as options for Python. */
final class RmqlogScanBuilder
    implements SupportsPushDownFilters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownLimit,
        SupportsPushDownAggregates {
  /** Metadata by which Python says that it applies every filter on a column exactly. */
  private static final String EXACT_FILTERS = "rmqlog.exactFilters";

  private final StructType tableSchema;
  private final Map<String, String> options;
  private StructType readSchema;
  private Filter[] pushedFilters = new Filter[0];

  RmqlogScanBuilder(StructType tableSchema, Map<String, String> options) {
    this.tableSchema = tableSchema;
    this.options = options;
    this.readSchema = tableSchema;
    SchemaJson.metadata(tableSchema)
        .ifPresent(json -> options.put(PythonSource.METADATA, json.toString()));
  }

  /** Hands all filters to Python and returns those that Spark has to evaluate again. */
  @Override
  public Filter[] pushFilters(Filter[] filters) {
    if (filters.length == 0) {
      return filters;
    }
    pushedFilters = filters;
    List<ObjectNode> conjuncts = new ArrayList<>();
    List<Filter> left = new ArrayList<>();
    for (Filter filter : filters) {
      ObjectNode json = FilterJson.of(filter);
      conjuncts.add(json);
      if (!FilterJson.isKnown(json) || !isExact(filter)) {
        left.add(filter);
      }
    }
    options.put(PythonSource.FILTERS, FilterJson.and(conjuncts).toString());
    return left.toArray(new Filter[0]);
  }

  @Override
  public Filter[] pushedFilters() {
    return pushedFilters;
  }

  @Override
  public void pruneColumns(StructType required) {
    StructField[] wanted =
        required.isEmpty() ? new StructField[] {cheapestColumn()} : required.fields();
    readSchema =
        new StructType(Arrays.stream(wanted).map(this::ofTable).toArray(StructField[]::new));
  }

  /** Spark applies the limit again, so Python may give more rows. */
  @Override
  public boolean pushLimit(int limit) {
    if (options.containsKey(PythonSource.AGGREGATE)) {
      return false;
    }
    options.put(PythonSource.LIMIT, Integer.toString(limit));
    return true;
  }

  /** Asks Python whether it answers this aggregate, and with which columns. */
  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    Optional<String> json = AggregateJson.of(aggregation).map(ObjectNode::toString);
    if (json.isEmpty()) {
      return false;
    }
    Map<String, String> question = PythonSource.copy(options);
    question.put(PythonSource.AGGREGATE, json.get());
    StructType answer = PythonSource.ask(question);
    if (answer.isEmpty()) {
      return false;
    }
    int columns =
        aggregation.groupByExpressions().length + aggregation.aggregateExpressions().length;
    if (answer.length() != columns) {
      throw new IllegalStateException(
          "the Python source answered " + json.get() + " with " + answer.length()
              + " columns instead of " + columns + ": " + answer.simpleString());
    }
    options.put(PythonSource.AGGREGATE, json.get());
    readSchema = answer;
    return true;
  }

  @Override
  public Scan build() {
    return new RmqlogScan(PythonSource.name(), readSchema, PythonSource.spoken(options));
  }

  private boolean isExact(Filter filter) {
    return Arrays.stream(filter.references()).allMatch(name ->
        tableSchema.getFieldIndex(name).isDefined()
            && tableSchema.apply(name).metadata().contains(EXACT_FILTERS)
            && tableSchema.apply(name).metadata().getBoolean(EXACT_FILTERS));
  }

  /** A scan must have a column even when the query needs none: a whole number is small. */
  private StructField cheapestColumn() {
    return Arrays.stream(tableSchema.fields())
        .filter(field -> isWholeNumber(field.dataType()))
        .findFirst()
        .orElse(tableSchema.fields()[0]);
  }

  private static boolean isWholeNumber(DataType type) {
    return type.equals(DataTypes.IntegerType) || type.equals(DataTypes.LongType);
  }

  /** The wanted column (perhaps narrowed inside) with the metadata that the table has for it. */
  private StructField ofTable(StructField wanted) {
    return new StructField(
        wanted.name(),
        wanted.dataType(),
        wanted.nullable(),
        tableSchema.apply(wanted.name()).metadata());
  }
}
